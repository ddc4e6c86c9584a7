-- Nothing changes; accepted tasks without an outcome that DBOS does not know.
SELECT count(*) FROM agent.tasks t WHERE t.outcome IS NULL AND NOT EXISTS (
    SELECT 1 FROM dbos.workflow_status s WHERE s.workflow_uuid = t.task_id)
