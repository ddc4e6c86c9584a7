-- The session's status says how much of its state the last context held; its user is told when it is too little.
SELECT agent.set_coherence(%(session)s, %(task)s, %(score)s::real, %(note)s, %(lowest)s::real)
