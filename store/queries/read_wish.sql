-- Nothing changes; what somebody wants of a running task, if anything.
SELECT agent.wanted(%(task)s)
