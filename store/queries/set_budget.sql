-- The budget holds, and what waited for it goes on.
SELECT agent.set_budget(%(scope)s::text, %(name)s::text, %(period)s::text, %(cost)s::numeric, %(tokens)s::bigint)
