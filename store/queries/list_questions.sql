-- Nothing changes; calls that wait for a person, oldest first.
SELECT * FROM agent.approvals
WHERE decision IS NULL AND (%(session)s::text IS NULL OR session_id = %(session)s)
  AND (%(task)s::text IS NULL OR task_id = %(task)s)
ORDER BY requested_at
