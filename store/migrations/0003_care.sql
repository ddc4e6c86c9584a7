-- What is owed after an interruption outlives whoever began it, notices leave the house, and a session whose state
-- could not be restored is told.

ALTER TABLE agent.notices ADD COLUMN delivered_at timestamptz, ADD COLUMN delivery_error text;

-- Tells a session's user, once per interruption, in the transaction that ends the interruption, and has the rest of
-- what is owed done beside the tasks: the handoff, and the message to the outside.
DROP FUNCTION agent.notice_interruption(text, text, text);
CREATE FUNCTION agent.notice_interruption(of_session text, of_task text, notice_kind text, occasion text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    known   jsonb;
    goal    text;
    doubts  text;
    steps   bigint;
    earlier agent.notices%ROWTYPE;
    told    agent.notices%ROWTYPE;
BEGIN
    SELECT document INTO known FROM agent.checkpoints WHERE session_id = of_session;
    SELECT coalesce(nullif(known->>'goal', ''), left(t.input, 200)) INTO goal FROM agent.tasks t WHERE t.task_id = of_task;
    SELECT string_agg(DISTINCT e.tool, ', ') INTO doubts FROM agent.effects e
    WHERE e.task_id = of_task AND e.state IN ('started', 'unknown');
    SELECT count(*) INTO steps FROM dbos.operation_outputs o WHERE o.workflow_uuid = of_task;
    SELECT * INTO earlier FROM agent.notices n
    WHERE n.session_id = of_session AND n.acknowledged_at IS NULL AND n.at > clock_timestamp() - interval '1 minute'
      AND n.kind <> 'incoherent'
    ORDER BY n.notice_id DESC LIMIT 1 FOR UPDATE;
    IF earlier.notice_id IS NULL THEN
        INSERT INTO agent.notices (session_id, task_id, kind, body) VALUES (of_session, of_task, notice_kind, '')
        RETURNING * INTO told;
    ELSE
        UPDATE agent.notices SET times = times + 1, at = clock_timestamp(), kind = notice_kind, task_id = of_task
        WHERE notice_id = earlier.notice_id RETURNING * INTO told;
    END IF;
    UPDATE agent.notices SET body = agent.notice_body(told.kind, told.times, told.at, goal,
        (SELECT count(*)::integer FROM jsonb_array_elements(coalesce(known->'plan', '[]')) p WHERE p->>'status' = 'done'),
        jsonb_array_length(coalesce(known->'plan', '[]')), steps, doubts)
    WHERE notice_id = told.notice_id RETURNING * INTO told;
    PERFORM agent.append_event(of_session, of_task, 'restart.noticed',
        jsonb_build_object('notice_id', told.notice_id, 'kind', told.kind, 'times', told.times, 'body', told.body));
    PERFORM agent.care('tend_session', 'tend:' || occasion, to_json(of_session), to_json(of_task), to_json(notice_kind),
        to_json(occasion), to_json(told.notice_id), to_json(told.times));
END $$;

-- Has a small workflow run once beside the tasks.
CREATE FUNCTION agent.care(workflow text, id text, VARIADIC args json[]) RETURNS void
LANGUAGE sql AS $$
    SELECT dbos.enqueue_workflow(workflow, 'perdure_care', args, workflow_id => id, app_version => 'perdure-1',
        application_name => 'perdure')
$$;

-- Declares silent or provably gone workers dead and frees what they ran, whoever left it. One adopter at a time.
CREATE OR REPLACE FUNCTION agent.adopt_tasks(me text, gone text[], judge_silence boolean)
RETURNS TABLE (task text, session text, worker text)
LANGUAGE plpgsql AS $$
DECLARE
    ended text;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('perdure.adopt')) THEN RETURN; END IF;
    UPDATE agent.workers SET state = 'dead'
    WHERE state IN ('alive', 'draining') AND worker_id <> me
      AND (worker_id = ANY (gone)
           OR judge_silence AND beat_at < clock_timestamp() - make_interval(secs => 2 * beat_seconds));
    FOR task, session, worker, ended IN
        SELECT s.workflow_uuid, t.session_id, s.executor_id, t.outcome
        FROM dbos.workflow_status s JOIN agent.tasks t ON t.task_id = s.workflow_uuid
        WHERE s.status = 'PENDING' AND NOT EXISTS (
            SELECT 1 FROM agent.workers w WHERE w.worker_id = s.executor_id AND w.state IN ('alive', 'draining'))
        ORDER BY s.workflow_uuid FOR NO KEY UPDATE OF s
    LOOP
        PERFORM agent.free_task(task);
        CONTINUE WHEN ended IS NOT NULL;
        UPDATE agent.tasks t SET crashes = crashes + 1 WHERE t.task_id = task;
        UPDATE agent.sessions s SET restarts = restarts + 1 WHERE s.session_id = session;
        PERFORM agent.append_event(session, task, 'worker.died', jsonb_build_object('worker', worker, 'adopted_by', me));
        PERFORM agent.notice_interruption(session, task, 'crash', worker || ':' || task);
        RETURN NEXT;
    END LOOP;
    PERFORM agent.free_care(NULL);
END $$;

-- Puts care that nobody living is at back on its queue, or that of one worker who leaves.
CREATE FUNCTION agent.free_care(leaving text) RETURNS void
LANGUAGE sql AS $$
    UPDATE dbos.workflow_status s SET status = 'ENQUEUED', owner_xid = NULL, started_at_epoch_ms = NULL
    WHERE s.status = 'PENDING' AND s.queue_name = 'perdure_care' AND (s.executor_id = leaving OR NOT EXISTS (
        SELECT 1 FROM agent.workers w WHERE w.worker_id = s.executor_id AND w.state IN ('alive', 'draining')))
$$;

-- A planned stop: what this worker still runs goes back to the queue, and no crash is counted.
CREATE OR REPLACE FUNCTION agent.leave(me text) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    task    text;
    session text;
    ended   text;
BEGIN
    UPDATE agent.workers SET state = 'stopped', beat_at = clock_timestamp() WHERE worker_id = me AND state <> 'dead';
    FOR task, session, ended IN
        SELECT s.workflow_uuid, t.session_id, t.outcome
        FROM dbos.workflow_status s JOIN agent.tasks t ON t.task_id = s.workflow_uuid
        WHERE s.status = 'PENDING' AND s.executor_id = me ORDER BY s.workflow_uuid FOR NO KEY UPDATE OF s
    LOOP
        PERFORM agent.free_task(task);
        CONTINUE WHEN ended IS NOT NULL;
        UPDATE agent.sessions s SET restarts = restarts + 1 WHERE s.session_id = session;
        PERFORM agent.append_event(session, task, 'worker.stopped', jsonb_build_object('worker', me, 'planned', true));
        PERFORM agent.notice_interruption(session, task, 'planned', me || ':' || task);
        RETURN NEXT task;
    END LOOP;
    PERFORM agent.free_care(me);
END $$;

-- Keeps how much of its state a session's context holds. One that could not be restored is said to its user, once.
CREATE FUNCTION agent.set_coherence(of_session text, of_task text, score real, remark text, lowest real) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    told agent.notices%ROWTYPE;
BEGIN
    UPDATE agent.sessions SET coherence = score, coherence_note = remark WHERE session_id = of_session;
    IF score >= lowest OR EXISTS (SELECT 1 FROM agent.notices n
        WHERE n.session_id = of_session AND n.kind = 'incoherent' AND n.acknowledged_at IS NULL) THEN
        RETURN;
    END IF;
    INSERT INTO agent.notices (session_id, task_id, kind, body) VALUES (of_session, of_task, 'incoherent', concat_ws(' ',
        'The state of this session could not be restored completely:', coalesce(remark, 'part of it is missing') || '.',
        'Everything is still on record, but the agent works with less than it knew.',
        'Tell it again what matters, as a correction, or give it a model with a larger window.'))
    RETURNING * INTO told;
    PERFORM agent.append_event(of_session, of_task, 'coherence.lost',
        jsonb_build_object('notice_id', told.notice_id, 'score', score, 'note', remark));
    PERFORM agent.care('deliver_notice', 'deliver:' || told.notice_id, to_json(told.notice_id), to_json(told.times));
END $$;

-- How the message to the outside about a notice ended.
CREATE FUNCTION agent.note_delivery(notice bigint, problem text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    told agent.notices%ROWTYPE;
BEGIN
    UPDATE agent.notices SET delivery_error = problem,
        delivered_at = CASE WHEN problem IS NULL THEN clock_timestamp() ELSE delivered_at END
    WHERE notice_id = notice RETURNING * INTO told;
    PERFORM agent.append_event(told.session_id, told.task_id,
        CASE WHEN problem IS NULL THEN 'notice.delivered' ELSE 'notice.undelivered' END,
        jsonb_strip_nulls(jsonb_build_object('notice_id', notice, 'error', problem)));
END $$;

-- The last tool calls of a task, oldest first, and what did not succeed, from the journal.
CREATE FUNCTION agent.worked(of_session text, of_task text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_object('tool', r.data->>'tool', 'outcome', r.data->>'outcome') ORDER BY r.seq), '[]')
    FROM (SELECT j.seq, j.data FROM agent.journal j
          WHERE j.session_id = of_session AND j.task_id = of_task AND j.kind = 'tool.finished'
            AND j.seq > (SELECT s.journal_seq - 200 FROM agent.sessions s WHERE s.session_id = of_session)
          ORDER BY j.seq DESC LIMIT 12) r
$$;

-- The state of the work as one session's next request needs it. After an interruption, also what the task has done
-- and, when no checkpoint was kept, the newest handoff.
DROP FUNCTION agent.restored(text, text);
CREATE FUNCTION agent.restored(of_session text, of_task text, is_recovering boolean) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'checkpoint', (SELECT c.document FROM agent.checkpoints c WHERE c.session_id = of_session),
        'corrections', coalesce((SELECT jsonb_agg(n.correction ORDER BY n.notice_id) FROM agent.notices n
            WHERE n.session_id = of_session AND n.correction IS NOT NULL), '[]'),
        'interruption', (SELECT n.body FROM agent.notices n WHERE n.session_id = of_session AND n.task_id = of_task
            ORDER BY n.notice_id DESC LIMIT 1),
        'worked', CASE WHEN is_recovering THEN agent.worked(of_session, of_task) ELSE '[]' END,
        'handoff', CASE WHEN is_recovering THEN (
            SELECT CASE WHEN EXISTS (SELECT 1 FROM agent.checkpoints c WHERE c.session_id = of_session)
                        THEN h.document->>'briefing' ELSE h.markdown END
            FROM agent.handoffs h WHERE h.session_id = of_session AND h.task_id = of_task
            ORDER BY h.handoff_id DESC LIMIT 1) END,
        'pending', coalesce((SELECT jsonb_agg(left(p.input, 200) ORDER BY p.seq) FROM (
            SELECT t.input, t.seq FROM agent.tasks t JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
            WHERE t.session_id = of_session AND t.task_id <> of_task AND s.status IN ('ENQUEUED', 'DELAYED')
            ORDER BY t.seq LIMIT 10) p), '[]'))
$$;
