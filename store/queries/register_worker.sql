-- The worker is known and alive.
INSERT INTO agent.workers (worker_id, host, pid, process, version, agents, beat_seconds)
VALUES (%(worker)s, %(host)s, %(pid)s, %(process)s, %(version)s, %(agents)s, %(beat_seconds)s)
ON CONFLICT (worker_id) DO UPDATE SET pid = excluded.pid, process = excluded.process, agents = excluded.agents,
    beat_seconds = excluded.beat_seconds, beat_at = clock_timestamp()
