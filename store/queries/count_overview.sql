-- Nothing changes; what the head of the console says. A task is lost if it was accepted, did not end, and nobody has it.
SELECT
    (SELECT count(*) FROM agent.sessions s WHERE s.mode <> 'closed' AND (%(user)s::text IS NULL OR s.user_id = %(user)s))
        AS alive,
    (SELECT coalesce(sum(s.restarts), 0) FROM agent.sessions s WHERE %(user)s::text IS NULL OR s.user_id = %(user)s)
        AS restarts,
    (SELECT count(*) FROM agent.tasks t WHERE t.outcome IS NULL AND (%(user)s::text IS NULL OR t.user_id = %(user)s)
        AND NOT EXISTS (SELECT 1 FROM dbos.workflow_status s WHERE s.workflow_uuid = t.task_id)) AS lost,
    (SELECT count(*) FROM agent.tasks t LEFT JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
     WHERE (t.outcome = 'dead' OR t.outcome IS NULL AND s.status = 'MAX_RECOVERY_ATTEMPTS_EXCEEDED')
       AND (%(user)s::text IS NULL OR t.user_id = %(user)s)) AS dead,
    (SELECT count(*) FROM agent.workers w WHERE w.state IN ('alive', 'draining')
        AND w.beat_at > clock_timestamp() - make_interval(secs => 2 * w.beat_seconds)) AS workers,
    (SELECT count(*) FROM agent.alerts a WHERE a.resolved_at IS NULL) AS alerts
