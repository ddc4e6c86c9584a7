-- The dead letter is cancelled.
SELECT agent.discard(%(task)s, %(why)s)
