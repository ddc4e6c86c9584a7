-- Nothing changes; the task that goes on from a waiting one, if there is one yet.
SELECT task_id FROM agent.tasks WHERE continues = %(task)s
