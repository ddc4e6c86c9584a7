-- The worker was heard of just now, unless it has been declared dead.
UPDATE agent.workers SET beat_at = clock_timestamp()
WHERE worker_id = %(worker)s AND state IN ('alive', 'draining') RETURNING worker_id
