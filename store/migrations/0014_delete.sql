-- A session and everything that belongs to it is gone, also from DBOS's tables.
CREATE OR REPLACE FUNCTION agent.delete_session(of_session text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    known agent.sessions%ROWTYPE := agent.hold_session(of_session);
    gone  text[];
BEGIN
    -- A task that has its outcome is about to be marked as ended: worth a moment's wait.
    FOR glance IN 1..40 LOOP
        EXIT WHEN NOT EXISTS (SELECT 1 FROM agent.tasks t JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
                              WHERE t.session_id = of_session AND s.status = 'PENDING' AND t.outcome IS NOT NULL);
        PERFORM pg_sleep(0.05);
    END LOOP;
    IF EXISTS (SELECT 1 FROM agent.tasks t JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
               WHERE t.session_id = of_session AND s.status = 'PENDING') THEN
        RAISE EXCEPTION 'a task of session % is running: wait for it or cancel it', quote_literal(of_session)
            USING ERRCODE = 'PD409';
    ELSIF EXISTS (SELECT 1 FROM agent.lineage l WHERE l.of_session = known.session_id AND l.session_id <> known.session_id) THEN
        RAISE EXCEPTION 'session % is part of the past of its forks: delete those first', quote_literal(of_session)
            USING ERRCODE = 'PD409';
    END IF;
    SELECT array_agg(s.workflow_uuid) INTO gone FROM dbos.workflow_status s
    WHERE EXISTS (SELECT 1 FROM agent.tasks t WHERE t.session_id = of_session
                    AND (s.workflow_uuid = t.task_id OR s.queue_name = 'perdure_care' AND s.inputs LIKE '%' || t.task_id || '%'))
       OR s.queue_name = 'perdure_care' AND s.name = 'deliver_notice' AND EXISTS (
            SELECT 1 FROM agent.notices n WHERE n.session_id = of_session AND s.workflow_uuid = 'deliver:' || n.notice_id)
       OR s.queue_name = 'perdure_care' AND s.name = 'deliver_alert' AND EXISTS (
            SELECT 1 FROM agent.alerts a JOIN agent.tasks t ON a.key = 'dead:' || t.task_id
            WHERE t.session_id = of_session AND s.workflow_uuid LIKE 'alert:' || a.alert_id || ':%');
    DELETE FROM dbos.operation_outputs WHERE workflow_uuid = ANY (gone);
    DELETE FROM dbos.workflow_input WHERE workflow_uuid = ANY (gone);
    DELETE FROM dbos.workflow_output WHERE workflow_uuid = ANY (gone);
    DELETE FROM dbos.workflow_status WHERE workflow_uuid = ANY (gone);
    DELETE FROM agent.alerts a USING agent.tasks t WHERE t.session_id = of_session AND a.key = 'dead:' || t.task_id;
    DELETE FROM agent.alerts WHERE key = 'breaker:session:' || of_session;
    DELETE FROM agent.breakers WHERE scope = 'session:' || of_session;
    UPDATE agent.workers w SET trial = NULL FROM agent.tasks t WHERE t.session_id = of_session AND w.trial = t.task_id;
    DELETE FROM agent.approvals WHERE session_id = of_session;
    PERFORM agent.unschedule(k.name) FROM agent.schedules k WHERE k.session_id = of_session;
    DELETE FROM agent.tasks WHERE session_id = of_session;
    DELETE FROM agent.sessions WHERE session_id = of_session;
    PERFORM agent.sweep_blobs();
END $$;
