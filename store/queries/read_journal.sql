-- Nothing changes; one session's events by number, or everybody's by time.
SELECT session_id, seq, task_id, kind, data, at FROM agent.journal
WHERE CASE WHEN %(session)s::text IS NOT NULL THEN session_id = %(session)s AND seq > %(after)s
           ELSE at > %(since)s::timestamptz END
ORDER BY at, seq LIMIT %(limit)s
