-- The task has ended, or will before its next step.
SELECT agent.cancel(%(task)s, %(why)s)
