-- Nothing changes; the task a session runs now, or else the one that its next input would be, as an execution opens it.
SELECT jsonb_build_object(
    'task_id', coalesce(t.task_id, ''), 'session_id', s.session_id, 'agent', s.agent, 'user_id', s.user_id,
    'kind', coalesce(t.kind, 'input'), 'continues', t.continues, 'input', coalesce(t.input, ''),
    'history_through', coalesce(t.history_through, s.messages), 'outcome', NULL, 'error', NULL,
    'is_recovering', coalesce(t.crashes > 0 OR t.kind = 'replacement', false), 'decisions', '[]'::jsonb,
    'compaction', agent.last_compaction(s.session_id), 'control', t.control,
    'steers', CASE WHEN t.task_id IS NULL THEN '[]' ELSE agent.steers_of(t.task_id) END)
FROM agent.sessions s
LEFT JOIN LATERAL (
    SELECT k.* FROM agent.tasks k JOIN dbos.workflow_status w ON w.workflow_uuid = k.task_id
    WHERE k.session_id = s.session_id AND k.outcome IS NULL AND k.started_at IS NOT NULL
      AND w.status IN ('PENDING', 'ENQUEUED', 'DELAYED')
    ORDER BY k.seq LIMIT 1) t ON true
WHERE s.session_id = %(session)s
