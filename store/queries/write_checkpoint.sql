-- The state of the work is kept, by the execution that owns the task.
SELECT agent.write_checkpoint(%(task)s, %(owner)s, %(document)s)
