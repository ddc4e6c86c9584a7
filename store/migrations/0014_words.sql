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

-- The sentence a user reads after an interruption.
CREATE OR REPLACE FUNCTION agent.notice_body(notice_kind text, times integer, moment timestamptz, goal text, done integer,
    planned integer, steps bigint, doubts text, goes_on timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT concat_ws(' ',
        CASE notice_kind
            WHEN 'planned' THEN 'The service was restarted as planned at '
            WHEN 'hang' THEN 'A step of this session hung and was aborted at '
            ELSE 'The worker of this session died at '
        END || to_char(moment AT TIME ZONE 'UTC', 'HH24:MI:SS') || ' UTC'
            || CASE WHEN times > 1 THEN format(' (%s interruptions in short time).', times) ELSE '.' END,
        format('Restored: we were working on “%s”', goal)
            || CASE WHEN planned > 0 THEN format(', %s of %s steps of the plan done', done, planned) ELSE '' END
            || CASE steps WHEN 0 THEN '; no step was on record yet.'
                WHEN 1 THEN '; 1 recorded step is kept and will not run again.'
                ELSE format('; %s recorded steps are kept and will not run again.', steps) END,
        CASE WHEN doubts IS NULL THEN 'Nothing is in doubt.'
             ELSE format('In doubt, because nobody recorded how it ended: %s.', doubts) END,
        'Next: the task goes on by itself' || CASE WHEN goes_on = 'infinity' THEN ' as soon as it may.'
            WHEN goes_on > moment THEN to_char(goes_on AT TIME ZONE 'UTC', '" at "HH24:MI:SS" UTC."') ELSE '.' END,
        'If something here is wrong, correct it, and the correction counts.')
$$;
