-- Nothing changes; what follows a compaction in an append-only list, and every exchange that is still open.
WITH RECURSIVE continued AS (
    SELECT task_id, continues FROM agent.tasks WHERE task_id = %(continued)s
    UNION ALL SELECT t.task_id, t.continues FROM agent.tasks t JOIN continued c ON t.task_id = c.continues)
SELECT m.position, m.task_id, t.continues, t.outcome = 'waiting' AS is_waiting, m.message
FROM agent.past(%(session)s) p
JOIN agent.messages m ON m.session_id = p.session_id AND m.seq > p.after AND (p.through IS NULL OR m.seq <= p.through)
JOIN agent.tasks t USING (task_id)
WHERE (%(through)s::integer IS NULL OR m.position <= %(through)s)
  AND (m.position > %(after)s OR m.task_id IN (SELECT task_id FROM continued) OR EXISTS (
      SELECT 1 FROM agent.approvals a WHERE a.task_id = m.task_id AND a.decision IS NULL))
ORDER BY m.position
