-- Nothing changes; workers that beat in time.
SELECT w.*, extract(epoch FROM clock_timestamp() - beat_at)::float AS silent_seconds FROM agent.workers w
WHERE state IN ('alive', 'draining') AND beat_at > clock_timestamp() - make_interval(secs => 2 * beat_seconds)
ORDER BY started_at DESC
