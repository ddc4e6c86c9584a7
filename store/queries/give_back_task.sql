-- The task is queued again under no owner, if this execution owned it.
UPDATE dbos.workflow_status SET status = 'ENQUEUED', owner_xid = NULL, started_at_epoch_ms = NULL,
    updated_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint
WHERE workflow_uuid = %(task)s AND owner_xid = %(owner)s AND status = 'PENDING'
