-- Nothing changes; the state of the work as the next request needs it.
SELECT agent.restored(%(session)s, %(task)s, %(is_recovering)s)
