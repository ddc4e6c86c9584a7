-- Nothing changes; sessions by who needs a person, with what a person wants to know of each. Without ids: all that are
-- not at rest, and those last active.
WITH mine AS MATERIALIZED (
    SELECT s.session_id, s.last_active_at, s.mode FROM agent.sessions s
    WHERE (%(user)s::text IS NULL OR s.user_id = %(user)s)
      AND (%(ids)s::text[] IS NULL OR s.session_id = ANY (%(ids)s::text[]))),
asked AS (
    SELECT a.session_id, count(*) AS questions, min(a.requested_at) AS asked_at,
        (array_agg(a.tool ORDER BY a.requested_at))[1] AS asked_tool,
        (array_agg(a.kind ORDER BY a.requested_at))[1] AS asked_kind
    FROM agent.approvals a WHERE a.decision IS NULL GROUP BY a.session_id),
doubted AS (
    SELECT d.session_id, count(*) AS doubts, min(d.started_at) AS doubted_at, min(d.tool) AS doubted_tool
    FROM agent.in_doubt d GROUP BY d.session_id),
busy AS (
    SELECT t.session_id, min(t.started_at) FILTER (WHERE w.status = 'PENDING') AS running_since,
        max(to_timestamp(w.delay_until_epoch_ms / 1000.0)) FILTER (WHERE w.status = 'DELAYED') AS runs_after
    FROM dbos.workflow_status w JOIN agent.tasks t ON t.task_id = w.workflow_uuid
    WHERE w.status IN ('PENDING', 'ENQUEUED', 'DELAYED') AND t.outcome IS NULL GROUP BY t.session_id),
shown AS MATERIALIZED (
    SELECT m.session_id FROM mine m
    LEFT JOIN asked a USING (session_id) LEFT JOIN doubted d USING (session_id) LEFT JOIN busy b USING (session_id)
    ORDER BY a.session_id IS NULL, d.session_id IS NULL, m.mode <> 'quarantined' AND NOT EXISTS (
            SELECT 1 FROM agent.breakers k WHERE k.scope = 'session:' || m.session_id),
        b.session_id IS NULL, m.last_active_at DESC LIMIT %(limit)s)
SELECT v.*, a.questions, a.asked_at, a.asked_tool, a.asked_kind, d.doubts, d.doubted_at, d.doubted_tool,
    b.running_since, b.runs_after, n.kind AS interrupted_by, n.at AS interrupted_at, n.acknowledged_at, n.again, s.taken_by, s.journal_seq,
    k.strip, f.parent_title
FROM shown
JOIN agent.session_status v USING (session_id) JOIN agent.sessions s USING (session_id)
LEFT JOIN asked a USING (session_id) LEFT JOIN doubted d USING (session_id) LEFT JOIN busy b USING (session_id)
LEFT JOIN LATERAL (SELECT p.title AS parent_title FROM agent.sessions p WHERE p.session_id = v.parent_session_id) f ON true
LEFT JOIN LATERAL (
    SELECT n.kind, n.at, n.acknowledged_at, (
        SELECT count(*) - count(DISTINCT j.data->>'step') FROM agent.journal j
        WHERE j.session_id = n.session_id AND j.task_id = n.task_id AND j.kind IN ('model.responded', 'tool.finished')
    ) AS again
    FROM agent.notices n WHERE n.session_id = v.session_id AND n.kind IN ('crash', 'planned', 'hang')
    ORDER BY n.notice_id DESC LIMIT 1) n ON true
LEFT JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_array(c.cell, c.events, c.mark) ORDER BY c.cell) AS strip FROM (
        SELECT floor(extract(epoch FROM j.at - (%(now)s::timestamptz - interval '24 hours')) / %(cell)s)::integer AS cell,
            count(*) AS events,
            max(CASE WHEN j.kind IN ('worker.died', 'worker.stopped', 'task.stalled') THEN 2
                     WHEN j.kind = 'context.compacted' THEN 1 ELSE 0 END) AS mark
        FROM agent.journal j
        WHERE j.session_id = v.session_id AND j.at > %(now)s::timestamptz - interval '24 hours' AND j.at <= %(now)s
        GROUP BY 1) c) k ON true
ORDER BY a.session_id IS NULL, d.session_id IS NULL, v.state <> 'quarantined', b.session_id IS NULL,
    v.last_active_at DESC, v.session_id COLLATE "C"
