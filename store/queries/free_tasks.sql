-- The tasks are queued again under no owner.
SELECT agent.free_tasks(%(tasks)s)
