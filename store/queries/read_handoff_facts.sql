-- Nothing changes; everything a handoff is written from.
SELECT agent.handoff_facts(%(session)s, %(task)s)
