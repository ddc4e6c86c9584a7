-- Nothing changes; rows this worker claimed and does not execute.
SELECT workflow_uuid AS task_id FROM dbos.workflow_status
WHERE status = 'PENDING' AND queue_name = 'perdure' AND executor_id = %(me)s AND NOT workflow_uuid = ANY (%(active)s)
