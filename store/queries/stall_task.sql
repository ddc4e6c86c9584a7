-- The task is queued again, or dead when it has hung before.
SELECT agent.stall(%(task)s, %(owner)s, %(step)s, %(seconds)s)
