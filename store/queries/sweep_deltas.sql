-- No piece is left of an answer that nobody is making.
DELETE FROM agent.deltas d WHERE NOT EXISTS (
    SELECT 1 FROM dbos.workflow_status s WHERE s.workflow_uuid = d.task_id AND s.status IN ('PENDING', 'ENQUEUED', 'DELAYED'))
