-- Nothing changes; the whole conversation as it stands, oldest first, also what a compaction has covered.
SELECT m.position, m.task_id, t.continues, coalesce(t.outcome = 'waiting', false) AS is_waiting, m.message
FROM agent.past(%(session)s) p
JOIN agent.messages m ON m.session_id = p.session_id AND m.seq > p.after AND (p.through IS NULL OR m.seq <= p.through)
JOIN agent.tasks t USING (task_id)
WHERE m.position > %(after)s ORDER BY m.position LIMIT %(limit)s
