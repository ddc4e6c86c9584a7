-- What a session needs to go on after any interruption: the state of its work, what it was told, what was left out.

-- The factual state of the work, at most 10 KB, kept by the agent through tools and by the service.
CREATE TABLE agent.checkpoints (
    session_id text PRIMARY KEY REFERENCES agent.sessions ON DELETE CASCADE,
    document   jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz
);

-- One row per interruption that touched a session; restarts in quick succession share one.
CREATE TABLE agent.notices (
    notice_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id      text NOT NULL REFERENCES agent.sessions ON DELETE CASCADE,
    task_id         text,
    kind            text NOT NULL CHECK (kind IN ('crash', 'planned', 'overflow', 'hang', 'incoherent')),
    body            text NOT NULL,
    times           integer NOT NULL DEFAULT 1,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    first_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    acknowledged_at timestamptz,
    correction      text CHECK (length(correction) <= 4000)
);

CREATE INDEX notices_by_session ON agent.notices (session_id, notice_id);

CREATE TABLE agent.handoffs (
    handoff_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id text NOT NULL REFERENCES agent.sessions ON DELETE CASCADE,
    task_id    text,
    reason     text NOT NULL CHECK (reason IN ('planned', 'crash', 'overflow', 'hang', 'human')),
    occasion   text NOT NULL UNIQUE,
    document   jsonb NOT NULL,
    markdown   text NOT NULL,
    exam_score real NOT NULL,
    at         timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX handoffs_by_session ON agent.handoffs (session_id, handoff_id);

-- Messages up to `through` are represented by the summary; the originals stay where they are.
CREATE TABLE agent.compactions (
    session_id    text NOT NULL REFERENCES agent.sessions ON DELETE CASCADE,
    through       integer NOT NULL,
    after         integer NOT NULL,
    task_id       text NOT NULL,
    tokens_before integer NOT NULL,
    tokens_after  integer NOT NULL,
    strategy      text NOT NULL,
    summary       text NOT NULL,
    exam_score    real NOT NULL,
    note          text,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (session_id, through)
);

ALTER TABLE agent.sessions ADD COLUMN coherence real, ADD COLUMN coherence_note text;

-- The sentence a user reads after an interruption.
CREATE FUNCTION agent.notice_body(notice_kind text, times integer, moment timestamptz, goal text, done integer,
    planned integer, steps bigint, doubts text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT concat_ws(' ',
        CASE notice_kind
            WHEN 'planned' THEN format('The service was restarted as planned at %s UTC', to_char(moment AT TIME ZONE 'UTC', 'HH24:MI:SS'))
            ELSE format('The worker of this session died at %s UTC', to_char(moment AT TIME ZONE 'UTC', 'HH24:MI:SS'))
        END || CASE WHEN times > 1 THEN format(' (%s interruptions in short time).', times) ELSE '.' END,
        format('Restored: we were working on “%s”', goal)
            || CASE WHEN planned > 0 THEN format(', %s of %s steps of the plan done', done, planned) ELSE '' END
            || format('; %s recorded steps are kept and will not run again.', steps),
        CASE WHEN doubts IS NULL THEN 'Nothing is in doubt.'
             ELSE format('In doubt, because nobody recorded how it ended: %s.', doubts) END,
        'Next: the task goes on by itself. If something here is wrong, correct it, and the correction counts.')
$$;

-- Tells a session's user, once per interruption, in the transaction that ends the interruption.
CREATE FUNCTION agent.notice_interruption(of_session text, of_task text, notice_kind text) RETURNS void
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
END $$;

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
        PERFORM agent.notice_interruption(session, task, 'crash');
        PERFORM dbos.enqueue_workflow('write_handoff', 'perdure_care',
            ARRAY[to_json(session), to_json(task), to_json('crash'::text), to_json(worker || ':' || task)],
            workflow_id => 'handoff:' || worker || ':' || task, app_version => 'perdure-1', application_name => 'perdure');
        RETURN NEXT;
    END LOOP;
END $$;

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
        PERFORM agent.notice_interruption(session, task, 'planned');
        RETURN NEXT task;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION agent.open_task(task text, owner text, worker text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    opened agent.tasks%ROWTYPE;
    known  agent.sessions%ROWTYPE;
    began  boolean;
BEGIN
    PERFORM agent.hold(task, owner);
    IF (SELECT s.queue_name FROM dbos.workflow_status s WHERE s.workflow_uuid = task) IS DISTINCT FROM 'perdure' THEN
        PERFORM agent.free_task(task);
        RETURN NULL;
    END IF;
    SELECT * INTO STRICT opened FROM agent.tasks WHERE task_id = task;
    began := opened.started_at IS NOT NULL;
    IF opened.outcome IS NULL THEN
        PERFORM agent.append_event(opened.session_id, task,
            CASE WHEN opened.started_at IS NULL THEN 'task.started' ELSE 'task.resumed' END,
            jsonb_build_object('worker', worker, 'crashes', opened.crashes));
    END IF;
    SELECT * INTO STRICT known FROM agent.sessions WHERE session_id = opened.session_id;
    UPDATE agent.tasks SET worker_id = worker, started_at = coalesce(started_at, clock_timestamp()),
        history_through = coalesce(history_through, known.messages)
    WHERE task_id = task RETURNING * INTO opened;
    RETURN jsonb_build_object(
        'task_id', task, 'session_id', opened.session_id, 'agent', opened.agent, 'user_id', opened.user_id,
        'kind', opened.kind, 'continues', opened.continues, 'input', opened.input,
        'history_through', opened.history_through, 'outcome', opened.outcome, 'error', opened.error,
        'is_recovering', began,
        'decisions', coalesce((
            SELECT jsonb_agg(jsonb_build_object('call_id', call_id, 'decision', decision, 'note', note,
                'arguments', arguments, 'idempotency_key', idempotency_key) ORDER BY call_id)
            FROM agent.approvals a WHERE a.task_id = opened.continues), '[]'),
        'compaction', (
            SELECT jsonb_build_object('through', c.through, 'summary', c.summary)
            FROM agent.compactions c WHERE c.session_id = opened.session_id ORDER BY c.through DESC LIMIT 1));
END $$;

CREATE OR REPLACE FUNCTION agent.commit_task(
    task text, owner text, result text, result_output jsonb, result_error text,
    new_messages jsonb, tokens integer, questions jsonb
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    done   agent.tasks%ROWTYPE;
    before integer;
BEGIN
    PERFORM agent.hold(task, owner);
    UPDATE agent.tasks SET outcome = result, output = result_output, error = result_error, finished_at = clock_timestamp()
    WHERE task_id = task AND outcome IS NULL RETURNING * INTO done;
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE agent.sessions SET messages = messages + jsonb_array_length(new_messages),
        context_tokens = coalesce(tokens, context_tokens)
    WHERE session_id = done.session_id RETURNING messages - jsonb_array_length(new_messages) INTO before;
    INSERT INTO agent.messages (session_id, position, task_id, message)
    SELECT done.session_id, before + m.ordinality, task, m.value FROM jsonb_array_elements(new_messages) WITH ORDINALITY m;
    UPDATE agent.checkpoints c SET expires_at = CASE WHEN EXISTS (
            SELECT 1 FROM jsonb_array_elements(c.document->'plan') p WHERE p->>'status' <> 'done')
        THEN NULL ELSE clock_timestamp() + interval '30 days' END
    WHERE c.session_id = done.session_id;
    INSERT INTO agent.approvals (task_id, call_id, session_id, tool, arguments, reason, idempotency_key)
    SELECT task, q->>'call_id', done.session_id, q->>'tool', q->'arguments', q->>'reason', q->>'idempotency_key'
    FROM jsonb_array_elements(questions) q;
    PERFORM agent.append_event(done.session_id, task, 'approval.requested',
        q || jsonb_build_object('task_id', task, 'expires_at', NULL)) FROM jsonb_array_elements(questions) q;
    PERFORM agent.append_event(done.session_id, task,
        CASE result WHEN 'done' THEN 'task.finished' WHEN 'waiting' THEN 'task.waited' ELSE 'task.failed' END,
        jsonb_strip_nulls(jsonb_build_object('status', result, 'error', left(result_error, 2000))));
END $$;

-- A user's answer to a notice; a correction counts more than anything restored.
CREATE FUNCTION agent.acknowledge(of_session text, notice bigint, words text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agent.notices SET acknowledged_at = clock_timestamp(), correction = coalesce(nullif(btrim(words), ''), correction)
    WHERE notice_id = notice AND session_id = of_session;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'session % has no notice %', quote_literal(of_session), notice USING ERRCODE = 'PD404';
    END IF;
    PERFORM agent.append_event(of_session, NULL, 'notice.acknowledged',
        jsonb_strip_nulls(jsonb_build_object('notice_id', notice, 'correction', nullif(btrim(words), ''))));
END $$;

-- The state of the work as one session's next request needs it.
CREATE FUNCTION agent.restored(of_session text, of_task text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'checkpoint', (SELECT c.document FROM agent.checkpoints c WHERE c.session_id = of_session),
        'corrections', coalesce((SELECT jsonb_agg(n.correction ORDER BY n.notice_id) FROM agent.notices n
            WHERE n.session_id = of_session AND n.correction IS NOT NULL), '[]'),
        'interruption', (SELECT n.body FROM agent.notices n WHERE n.session_id = of_session AND n.task_id = of_task
            ORDER BY n.notice_id DESC LIMIT 1),
        'pending', coalesce((SELECT jsonb_agg(left(p.input, 200) ORDER BY p.seq) FROM (
            SELECT t.input, t.seq FROM agent.tasks t JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
            WHERE t.session_id = of_session AND t.task_id <> of_task AND s.status IN ('ENQUEUED', 'DELAYED')
            ORDER BY t.seq LIMIT 10) p), '[]'))
$$;

-- Keeps the state of the work; only the execution that owns the task may.
CREATE FUNCTION agent.write_checkpoint(task text, owner text, state jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM agent.hold(task, owner);
    INSERT INTO agent.checkpoints AS c (session_id, document)
    SELECT t.session_id, state FROM agent.tasks t WHERE t.task_id = task
    ON CONFLICT (session_id) DO UPDATE SET document = excluded.document, updated_at = clock_timestamp(), expires_at = NULL;
END $$;

-- What a worker is at for long is kept as the state of the work, at least with its goal; what was done long ago is not.
CREATE FUNCTION agent.tend_checkpoints(me text) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO agent.checkpoints (session_id, document)
    SELECT t.session_id, jsonb_build_object('goal', left(t.input, 500))
    FROM agent.tasks t JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
    WHERE s.status = 'PENDING' AND s.executor_id = me AND t.started_at < clock_timestamp() - interval '1 minute'
    ON CONFLICT (session_id) DO UPDATE SET updated_at = clock_timestamp(), expires_at = NULL;
    DELETE FROM agent.checkpoints WHERE expires_at < clock_timestamp();
$$;

-- Records what a request left out. Repeating it changes nothing.
CREATE FUNCTION agent.record_compaction(
    task text, owner text, cut integer, before integer, remaining integer, how text, words text, score real, remark text
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    of_session text;
    since      integer;
BEGIN
    PERFORM agent.hold(task, owner);
    SELECT t.session_id INTO STRICT of_session FROM agent.tasks t WHERE t.task_id = task;
    SELECT coalesce(max(c.through), 0) INTO since FROM agent.compactions c WHERE c.session_id = of_session;
    INSERT INTO agent.compactions (session_id, through, after, task_id, tokens_before, tokens_after, strategy, summary,
        exam_score, note)
    VALUES (of_session, cut, since, task, before, remaining, how, words, score, remark) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        UPDATE agent.sessions SET compactions = compactions + 1 WHERE session_id = of_session;
        PERFORM agent.append_event(of_session, task, 'context.compacted', jsonb_strip_nulls(jsonb_build_object(
            'through', cut, 'after', since, 'tokens_before', before, 'tokens_after', remaining, 'strategy', how,
            'exam_score', score, 'note', remark)));
    END IF;
END $$;

-- Everything a handoff is written from, in one look.
CREATE FUNCTION agent.handoff_facts(of_session text, of_task text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'session_id', s.session_id, 'agent', s.agent, 'task_id', t.task_id, 'input', t.input, 'title', s.title,
        'checkpoint', (SELECT c.document FROM agent.checkpoints c WHERE c.session_id = of_session),
        'corrections', coalesce((SELECT jsonb_agg(n.correction ORDER BY n.notice_id) FROM agent.notices n
            WHERE n.session_id = of_session AND n.correction IS NOT NULL), '[]'),
        'steps', (SELECT count(*) FROM dbos.operation_outputs o WHERE o.workflow_uuid = t.task_id),
        'tools', coalesce((SELECT jsonb_agg(jsonb_build_object('tool', l.tool, 'outcome', l.outcome, 'input', l.input,
                'output', left(l.output #>> '{}', 300)) ORDER BY l.step)
            FROM (SELECT substr(g.name, 6) AS tool, g.outcome, g.input, g.output, g.step FROM agent.step_log g
                  WHERE g.task_id = t.task_id AND g.kind = 'tool' ORDER BY g.step DESC LIMIT 12) l), '[]'),
        'doubts', coalesce((SELECT jsonb_agg(jsonb_build_object('tool', e.tool, 'arguments', e.arguments,
                'idempotency_key', e.idempotency_key, 'policy', e.policy) ORDER BY e.started_at)
            FROM agent.effects e WHERE e.session_id = of_session AND e.state IN ('started', 'unknown')), '[]'),
        'questions', coalesce((SELECT jsonb_agg(jsonb_build_object('tool', a.tool, 'arguments', a.arguments,
                'reason', a.reason) ORDER BY a.requested_at)
            FROM agent.approvals a WHERE a.session_id = of_session AND a.decision IS NULL), '[]'),
        'pending', coalesce((SELECT jsonb_agg(left(p.input, 200) ORDER BY p.seq) FROM agent.tasks p
            JOIN dbos.workflow_status w ON w.workflow_uuid = p.task_id
            WHERE p.session_id = of_session AND p.task_id IS DISTINCT FROM t.task_id
              AND w.status IN ('ENQUEUED', 'DELAYED')), '[]'))
    FROM agent.sessions s
    LEFT JOIN LATERAL (
        SELECT k.task_id, k.input FROM agent.tasks k WHERE k.session_id = of_session
          AND (of_task IS NULL OR k.task_id = of_task) ORDER BY k.seq DESC NULLS LAST LIMIT 1) t ON true
    WHERE s.session_id = of_session
$$;

CREATE OR REPLACE VIEW agent.session_status AS
SELECT s.session_id, s.agent, s.user_id, s.title,
    CASE WHEN s.mode <> 'open' THEN s.mode
         WHEN t.running > 0 THEN 'running' WHEN a.unanswered > 0 THEN 'waiting' ELSE 'idle' END AS state,
    s.parent_session_id, t.open_tasks, t.dead_tasks, s.messages, s.context_tokens, s.context_window,
    s.restarts, s.compactions, s.created_at, s.last_active_at, s.coherence, s.coherence_note
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
