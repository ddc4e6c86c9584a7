-- Nothing changes; how many tasks are in each status.
SELECT status, count(*) AS tasks FROM agent.task_status GROUP BY status
