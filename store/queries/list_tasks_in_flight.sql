-- Nothing changes; every task under way that has steps on record, as an execution of it would be told of it.
SELECT t.task_id, t.session_id, t.agent, t.user_id, t.kind, t.continues, t.input,
    coalesce(t.history_through, s.messages) AS history_through, t.outcome, t.error, true AS is_recovering,
    coalesce((
        SELECT jsonb_agg(to_jsonb(a) ORDER BY call_id) FROM agent.approvals a WHERE a.task_id = t.continues), '[]') AS decisions,
    -- In words that the schema before this release understands too.
    coalesce((
        SELECT jsonb_agg(to_jsonb(a)) FROM agent.approvals a
        WHERE a.session_id = t.session_id AND to_jsonb(a)->>'honoured_by' = t.task_id), '[]') AS owed,
    agent.last_compaction(t.session_id) AS compaction
FROM agent.tasks t JOIN agent.sessions s USING (session_id) JOIN dbos.workflow_status w ON w.workflow_uuid = t.task_id
WHERE w.status IN ('PENDING', 'ENQUEUED', 'DELAYED') AND t.outcome IS NULL
  AND EXISTS (SELECT 1 FROM dbos.operation_outputs o WHERE o.workflow_uuid = t.task_id)
ORDER BY t.accepted_at, t.task_id
