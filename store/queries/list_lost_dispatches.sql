-- Nothing changes; rows this worker claimed a while ago and does not execute.
SELECT workflow_uuid AS task_id FROM dbos.workflow_status
WHERE status = 'PENDING' AND queue_name = 'perdure' AND executor_id = %(me)s AND NOT workflow_uuid = ANY (%(active)s)
  AND started_at_epoch_ms < (extract(epoch FROM clock_timestamp()) - %(seconds)s) * 1000
