-- The worker is in the given state.
UPDATE agent.workers SET state = %(state)s WHERE worker_id = %(worker)s AND state <> 'dead'
