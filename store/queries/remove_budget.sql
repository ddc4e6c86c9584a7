-- The budget is gone, and what waited for it goes on.
SELECT agent.remove_budget(%(scope)s::text, %(name)s::text, %(period)s::text)
