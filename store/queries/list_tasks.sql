-- Nothing changes; newest first.
SELECT * FROM agent.task_status
WHERE (%(session)s::text IS NULL OR session_id = %(session)s) AND (%(status)s::text IS NULL OR status = %(status)s)
ORDER BY accepted_at DESC, seq DESC LIMIT %(limit)s
