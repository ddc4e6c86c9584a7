-- Nothing changes; at most one row.
SELECT * FROM agent.task_status WHERE task_id = %(task)s
