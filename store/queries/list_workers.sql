-- Nothing changes; newest first.
SELECT w.*, extract(epoch FROM clock_timestamp() - beat_at)::float AS silent_seconds FROM agent.workers w
WHERE NOT %(living)s OR state IN ('alive', 'draining') ORDER BY started_at DESC
