-- The dead letter is a task again, or another one has its place.
SELECT agent.retry(%(task)s, %(words)s)
