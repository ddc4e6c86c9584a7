-- The task waits where it stands.
SELECT agent.stop_here(%(task)s, %(owner)s)
