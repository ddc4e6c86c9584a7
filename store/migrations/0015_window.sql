-- How much a session's model can hold is known with its agent, so that people see how full a context is.

ALTER TABLE agent.agents ADD COLUMN context_window integer;

CREATE OR REPLACE VIEW agent.session_status AS
SELECT s.session_id, s.agent, s.user_id, s.title,
    CASE WHEN s.mode <> 'open' THEN s.mode WHEN s.budget_until > clock_timestamp() THEN 'paused'
         WHEN EXISTS (SELECT 1 FROM agent.breakers b WHERE b.scope = 'session:' || s.session_id) THEN 'quarantined'
         WHEN t.running > 0 THEN 'running' WHEN a.unanswered > 0 THEN 'waiting' ELSE 'idle' END AS state,
    s.parent_session_id, t.open_tasks, t.dead_tasks, s.messages, s.context_tokens,
    coalesce(s.context_window, (SELECT g.context_window FROM agent.agents g WHERE g.name = s.agent)) AS context_window,
    s.restarts, s.compactions, s.created_at, s.last_active_at, s.coherence, s.coherence_note,
    (SELECT coalesce(sum(y.tokens), 0)::bigint FROM agent.tallies y WHERE y.scope = 'session' AND y.name = s.session_id) AS tokens,
    (SELECT sum(y.cost_usd) FROM agent.tallies y WHERE y.scope = 'session' AND y.name = s.session_id) AS cost_usd,
    coalesce(s.budget_until > clock_timestamp(), false) AS is_over_budget,
    CASE WHEN s.budget_until > clock_timestamp() THEN nullif(s.budget_until, 'infinity') END AS budget_until
FROM agent.sessions s
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE w.status IN ('PENDING', 'ENQUEUED', 'DELAYED')) AS running,
        count(*) FILTER (WHERE w.status IN ('PENDING', 'ENQUEUED', 'DELAYED')) AS open_tasks,
        count(*) FILTER (WHERE k.outcome = 'dead' OR w.status = 'MAX_RECOVERY_ATTEMPTS_EXCEEDED') AS dead_tasks
    FROM agent.tasks k JOIN dbos.workflow_status w ON w.workflow_uuid = k.task_id WHERE k.session_id = s.session_id
) t
CROSS JOIN LATERAL (
    SELECT count(*) AS unanswered FROM agent.approvals p
    WHERE p.session_id = s.session_id AND p.decision IS NULL
) a;
