-- Nothing changes; what the living workers run right now, longest first.
SELECT v.* FROM agent.workers w
JOIN dbos.workflow_status s ON s.executor_id = w.worker_id AND s.status = 'PENDING'
JOIN agent.task_status v ON v.task_id = s.workflow_uuid
WHERE w.state IN ('alive', 'draining') ORDER BY v.started_at NULLS LAST LIMIT %(limit)s
