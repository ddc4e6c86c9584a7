-- Nothing changes; the newest messages of this session's past that contain the words.
SELECT m.position, m.task_id, t.continues, t.outcome = 'waiting' AS is_waiting, m.message
FROM agent.past(%(session)s) p
JOIN agent.messages m ON m.session_id = p.session_id AND m.seq > p.after AND (p.through IS NULL OR m.seq <= p.through)
JOIN agent.tasks t USING (task_id)
WHERE position(lower(%(words)s) in lower(m.message::text)) > 0
ORDER BY m.position DESC LIMIT %(limit)s
