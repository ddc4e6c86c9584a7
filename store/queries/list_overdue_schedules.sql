-- Nothing changes; schedules whose next occurrence has passed, and until when the worker lived that should have seen it.
SELECT s.*, agent.watched_until(s.next_at) AS watched_until, clock_timestamp() AS now
FROM agent.schedules s WHERE s.next_at <= clock_timestamp()
