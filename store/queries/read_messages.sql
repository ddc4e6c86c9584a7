-- Nothing changes; a prefix of an append-only list, so the same rows at every reading.
SELECT m.position, m.task_id, t.continues, t.outcome = 'waiting' AS is_waiting, m.message
FROM agent.messages m JOIN agent.tasks t USING (task_id)
WHERE m.session_id = %(session)s AND (%(through)s::integer IS NULL OR m.position <= %(through)s)
ORDER BY m.position
