-- The worker has stopped as planned and runs nothing.
SELECT agent.leave(%(me)s)
