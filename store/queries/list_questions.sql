-- Nothing changes; calls that wait for a person, oldest first.
SELECT a.* FROM agent.approvals a
WHERE a.decision IS NULL AND (%(session)s::text IS NULL OR a.session_id = %(session)s)
  AND (%(task)s::text IS NULL OR a.task_id = %(task)s)
  AND (%(user)s::text IS NULL OR EXISTS (
      SELECT 1 FROM agent.tasks t WHERE t.task_id = a.task_id AND t.user_id = %(user)s))
  AND (%(moment)s::timestamptz IS NULL OR (a.requested_at, a.task_id COLLATE "C", a.call_id COLLATE "C")
       > (%(moment)s, %(after)s::text COLLATE "C", %(call)s::text COLLATE "C"))
ORDER BY a.requested_at, a.task_id COLLATE "C", a.call_id COLLATE "C" LIMIT %(limit)s
