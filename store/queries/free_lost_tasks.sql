-- Nothing is claimed by this worker for long without being run.
SELECT agent.free_lost(%(me)s, %(active)s, %(seconds)s)
