-- Nothing changes; the place in the journal after which a task's story begins: for one that goes on from another, where that one waits.
SELECT j.seq - CASE j.kind WHEN 'task.accepted' THEN 1 ELSE 0 END AS seq
FROM agent.tasks t
CROSS JOIN LATERAL (
    SELECT seq, kind FROM agent.journal
    WHERE session_id = t.session_id AND task_id = coalesce(t.continues, t.task_id)
      AND kind = CASE WHEN t.continues IS NULL THEN 'task.accepted' ELSE 'task.waited' END
    ORDER BY seq DESC LIMIT 1) j
WHERE t.task_id = %(task)s
