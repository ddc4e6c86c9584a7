-- Nothing changes; the newest messages of this session that contain the words.
SELECT m.position, m.task_id, t.continues, t.outcome = 'waiting' AS is_waiting, m.message
FROM agent.messages m JOIN agent.tasks t USING (task_id)
WHERE m.session_id = %(session)s AND position(lower(%(words)s) in lower(m.message::text)) > 0
ORDER BY m.position DESC LIMIT %(limit)s
