-- Nothing changes; newest first.
SELECT * FROM agent.task_status
WHERE (%(session)s::text IS NULL OR session_id = %(session)s) AND (%(status)s::text IS NULL OR status = %(status)s)
  AND (%(user)s::text IS NULL OR user_id = %(user)s)
  AND (%(moment)s::timestamptz IS NULL OR (accepted_at, coalesce(seq, 0), task_id COLLATE "C")
       < (%(moment)s, %(seq)s::bigint, %(after)s::text COLLATE "C"))
ORDER BY accepted_at DESC, coalesce(seq, 0) DESC, task_id COLLATE "C" DESC LIMIT %(limit)s
