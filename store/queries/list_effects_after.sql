-- Nothing changes; what happened outside after a place in the journal.
SELECT * FROM agent.effects_after(%(session)s, %(at)s)
