-- The task is queued again under no owner, if this execution owned it.
SELECT agent.give_back(%(task)s, %(owner)s)
