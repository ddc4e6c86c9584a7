-- The newest worker that ran in this process says how it ended; one that had left as planned says nothing.
SELECT agent.note_end(worker_id, %(how)s, %(is_hang)s) FROM (
    SELECT worker_id FROM agent.workers WHERE process = %(process)s AND state <> 'stopped'
    ORDER BY started_at DESC LIMIT 1) newest
