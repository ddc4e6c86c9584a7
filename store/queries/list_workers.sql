-- Nothing changes; newest first.
SELECT w.*, extract(epoch FROM clock_timestamp() - beat_at)::float AS silent_seconds FROM agent.workers w
WHERE (NOT %(living)s OR state IN ('alive', 'draining'))
  AND (%(moment)s::timestamptz IS NULL
       OR (started_at, worker_id COLLATE "C") < (%(moment)s, %(after)s::text COLLATE "C"))
ORDER BY started_at DESC, worker_id COLLATE "C" DESC LIMIT %(limit)s
