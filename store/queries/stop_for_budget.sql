-- The task waits with its session until there is budget again, and people were told; or there is, and nothing changed.
SELECT agent.stop_for_budget(%(task)s::text, %(owner)s::text)
