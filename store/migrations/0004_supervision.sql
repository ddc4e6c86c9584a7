-- Supervision: waits after crashes, isolation of suspects, dead letters, breakers, hangs, hand-overs and alerts.

ALTER TABLE agent.sessions ADD COLUMN waits_until timestamptz;

ALTER TABLE agent.tasks ADD COLUMN hangs integer NOT NULL DEFAULT 0, ADD COLUMN is_isolated boolean NOT NULL DEFAULT false,
    ADD COLUMN evidence jsonb, ADD COLUMN held_by text;

ALTER TABLE agent.workers ADD COLUMN role text NOT NULL DEFAULT 'worker' CHECK (role IN ('worker', 'isolated')),
    ADD COLUMN trial text, ADD COLUMN ended text;

ALTER TABLE agent.notices DROP CONSTRAINT notices_kind_check,
    ADD CONSTRAINT notices_kind_check CHECK (kind IN ('crash', 'planned', 'overflow', 'hang', 'incoherent', 'dead'));

ALTER TABLE agent.tasks DROP CONSTRAINT tasks_kind_check,
    ADD CONSTRAINT tasks_kind_check CHECK (kind IN ('input', 'continuation', 'replacement'));

-- A session runs one task at a time, also while one of them runs apart.
CREATE INDEX tasks_isolated ON agent.tasks (session_id) WHERE is_isolated AND outcome IS NULL;

-- Which task was on which worker when it died. A crash is blamed once its task is convicted, and forgotten when the
-- task is acquitted.
CREATE TABLE agent.crashes (
    worker_id  text NOT NULL,
    task_id    text NOT NULL REFERENCES agent.tasks ON DELETE CASCADE,
    session_id text NOT NULL,
    agent      text NOT NULL,
    tool       text,
    is_blamed  boolean NOT NULL DEFAULT false,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (task_id, worker_id)
);

CREATE INDEX crashes_by_session ON agent.crashes (session_id) WHERE is_blamed;

-- What has crashed too often waits, and nothing else does. Scopes are 'session:…', 'agent:…' and 'tool:agent/…'.
CREATE TABLE agent.breakers (
    scope     text PRIMARY KEY,
    state     text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'half-open')),
    reason    text NOT NULL,
    trial     text,
    pause     double precision NOT NULL,
    openings  integer NOT NULL DEFAULT 1,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    until     timestamptz NOT NULL
);

-- What a person should know: one open row per key, however often it happens.
CREATE TABLE agent.alerts (
    alert_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key            text NOT NULL,
    what           text NOT NULL,
    did            text NOT NULL,
    advice         text NOT NULL,
    times          integer NOT NULL DEFAULT 1,
    since          timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    resolved_at    timestamptz,
    delivered_at   timestamptz,
    delivery_error text
);

CREATE UNIQUE INDEX alerts_open ON agent.alerts (key) WHERE resolved_at IS NULL;

-- Has a person told, once while it lasts.
CREATE FUNCTION agent.raise_alert(about text, happened text, done text, todo text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    raised agent.alerts%ROWTYPE;
BEGIN
    INSERT INTO agent.alerts AS a (key, what, did, advice) VALUES (about, happened, done, todo)
    ON CONFLICT (key) WHERE resolved_at IS NULL DO UPDATE SET times = a.times + 1, last_at = clock_timestamp(),
        what = excluded.what, did = excluded.did, advice = excluded.advice
    RETURNING * INTO raised;
    IF raised.times = 1 THEN
        PERFORM agent.care('deliver_alert', 'alert:' || raised.alert_id || ':raised', to_json(raised.alert_id),
            to_json('raised'::text));
    END IF;
END $$;

CREATE FUNCTION agent.resolve_alert(about text) RETURNS void
LANGUAGE sql AS $$
    WITH resolved AS (
        UPDATE agent.alerts SET resolved_at = clock_timestamp() WHERE key = about AND resolved_at IS NULL RETURNING alert_id)
    SELECT agent.care('deliver_alert', 'alert:' || alert_id || ':resolved', to_json(alert_id), to_json('resolved'::text))
    FROM resolved
$$;

-- How the message to the outside about an alert ended.
CREATE FUNCTION agent.note_alert(alert bigint, problem text) RETURNS void
LANGUAGE sql AS $$
    UPDATE agent.alerts SET delivery_error = problem,
        delivered_at = CASE WHEN problem IS NULL THEN clock_timestamp() ELSE delivered_at END
    WHERE alert_id = alert
$$;

-- When a task may run: at once, at a moment, or only when somebody says so.
CREATE FUNCTION agent.runs_after(task text, of_session text, of_agent text) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT greatest(s.waits_until, CASE WHEN s.mode = 'paused' OR EXISTS (
            SELECT 1 FROM agent.tasks k JOIN dbos.workflow_status w ON w.workflow_uuid = k.task_id
            WHERE k.session_id = of_session AND k.is_isolated AND k.outcome IS NULL AND k.task_id <> task
              AND w.status IN ('PENDING', 'ENQUEUED', 'DELAYED')) OR EXISTS (
            SELECT 1 FROM agent.breakers b
            WHERE b.scope IN ('session:' || of_session, 'agent:' || of_agent,
                    (SELECT h.held_by FROM agent.tasks h WHERE h.task_id = task))
              AND b.trial IS DISTINCT FROM task)
        THEN 'infinity'::timestamptz END)
    FROM agent.sessions s WHERE s.session_id = of_session
$$;

-- Puts a task that nobody runs where it belongs: on its queue, apart when it is a suspect, or waiting.
CREATE FUNCTION agent.place_task(task text) RETURNS void
LANGUAGE sql AS $$
    UPDATE dbos.workflow_status s SET
        status = CASE WHEN p.after > clock_timestamp() THEN 'DELAYED' ELSE 'ENQUEUED' END,
        delay_until_epoch_ms = CASE WHEN p.after > clock_timestamp()
            THEN (extract(epoch FROM least(p.after, timestamptz '9999-01-01 00:00+00')) * 1000)::bigint END,
        queue_name = CASE WHEN t.is_isolated THEN 'perdure_isolation' ELSE 'perdure' END,
        queue_partition_key = t.session_id, priority = t.seq, owner_xid = NULL, started_at_epoch_ms = NULL,
        updated_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    FROM agent.tasks t, LATERAL (SELECT agent.runs_after(t.task_id, t.session_id, t.agent) AS after) p
    WHERE t.task_id = task AND s.workflow_uuid = task AND s.status IN ('PENDING', 'ENQUEUED', 'DELAYED')
$$;

-- Puts all that waits in a session where it belongs now.
CREATE FUNCTION agent.place_session(of_session text) RETURNS void
LANGUAGE sql AS $$
    SELECT agent.place_task(w.workflow_uuid) FROM (
        SELECT s.workflow_uuid FROM dbos.workflow_status s JOIN agent.tasks t ON t.task_id = s.workflow_uuid
        WHERE t.session_id = of_session AND s.status IN ('ENQUEUED', 'DELAYED')
        ORDER BY s.workflow_uuid FOR NO KEY UPDATE OF s) w
$$;

DROP FUNCTION agent.free_task(text);

-- Runs when the accepting transaction commits: place in the session, journal, DBOS row.
CREATE OR REPLACE FUNCTION agent.accept_task() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    place integer;
    after timestamptz;
BEGIN
    IF NEW.seq IS NULL THEN
        UPDATE agent.sessions SET task_seq = task_seq + 1 WHERE session_id = NEW.session_id RETURNING task_seq INTO place;
    ELSE
        place := NEW.seq;  -- the task that replaces another one takes its place
    END IF;
    UPDATE agent.tasks SET seq = place, accepted_at = clock_timestamp() WHERE task_id = NEW.task_id;
    PERFORM agent.append_event(NEW.session_id, NEW.task_id, 'task.accepted',
        jsonb_build_object('agent', NEW.agent, 'seq', place, 'kind', NEW.kind, 'input', left(NEW.input, 2000)));
    PERFORM dbos.enqueue_workflow(
        workflow_name => 'run_task', queue_name => 'perdure', positional_args => ARRAY[to_json(NEW.task_id)],
        workflow_id => NEW.task_id, priority => place, queue_partition_key => NEW.session_id,
        app_version => 'perdure-1', application_name => 'perdure');
    after := agent.runs_after(NEW.task_id, NEW.session_id, NEW.agent);
    IF after > clock_timestamp() THEN PERFORM agent.place_task(NEW.task_id); END IF;
    RETURN NULL;
END $$;

-- Begins or resumes the execution of a task; what it returns is the same every time. Returns nothing for a task that
-- is not where it belongs, as after `dbos workflow resume`: it goes back, to where its session is in order.
CREATE OR REPLACE FUNCTION agent.open_task(task text, owner text, worker text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    opened agent.tasks%ROWTYPE;
    known  agent.sessions%ROWTYPE;
    began  boolean;
    on_queue text;
BEGIN
    PERFORM agent.hold(task, owner);
    SELECT * INTO STRICT opened FROM agent.tasks WHERE task_id = task;
    SELECT s.queue_name INTO on_queue FROM dbos.workflow_status s WHERE s.workflow_uuid = task;
    IF on_queue IS DISTINCT FROM (CASE WHEN opened.is_isolated THEN 'perdure_isolation' ELSE 'perdure' END) THEN
        PERFORM agent.place_task(task);
        RETURN NULL;
    END IF;
    IF opened.is_isolated THEN
        UPDATE agent.workers w SET trial = task WHERE w.worker_id = worker AND w.role = 'isolated'
          AND w.state IN ('alive', 'draining') AND (w.trial IS NULL OR w.trial = task);
        IF NOT FOUND THEN
            PERFORM agent.place_task(task);
            RETURN NULL;
        END IF;
    END IF;
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
        'is_recovering', began OR opened.kind = 'replacement',
        'decisions', coalesce((
            SELECT jsonb_agg(jsonb_build_object('call_id', call_id, 'decision', decision, 'note', note,
                'arguments', arguments, 'idempotency_key', idempotency_key) ORDER BY call_id)
            FROM agent.approvals a WHERE a.task_id = opened.continues), '[]'),
        'compaction', (
            SELECT jsonb_build_object('through', c.through, 'summary', c.summary)
            FROM agent.compactions c WHERE c.session_id = opened.session_id ORDER BY c.through DESC LIMIT 1));
END $$;

-- Ends a task: messages appended, outcome set, questions asked. The first commit wins.
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
        CASE result WHEN 'done' THEN 'task.finished' WHEN 'waiting' THEN 'task.waited'
             WHEN 'cancelled' THEN 'task.replaced' ELSE 'task.failed' END,
        jsonb_strip_nulls(jsonb_build_object('status', result, 'error', left(result_error, 2000))));
    IF done.is_isolated THEN
        PERFORM agent.acquit(task);
        PERFORM agent.end_trial(task, true);
        PERFORM agent.place_session(done.session_id);
    END IF;
END $$;

-- The task has outlived what it was suspected of: its crashes were others'.
CREATE FUNCTION agent.acquit(task text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    freed agent.tasks%ROWTYPE;
BEGIN
    SELECT * INTO freed FROM agent.tasks WHERE task_id = task AND crashes > 0;
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE agent.tasks SET crashes = 0 WHERE task_id = task;
    DELETE FROM agent.crashes WHERE task_id = task AND NOT is_blamed;
    PERFORM agent.append_event(freed.session_id, task, 'task.acquitted', jsonb_build_object('crashes', freed.crashes));
END $$;

-- Every recorded step becomes a journal event, a recorded tool call closes its effect, and a suspect that gets this
-- far is none any more.
CREATE OR REPLACE FUNCTION agent.journal_step() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    of_session text;
    on_trial   boolean;
    record     jsonb;
    took       bigint := NEW.completed_at_epoch_ms - NEW.started_at_epoch_ms;
BEGIN
    SELECT session_id, is_isolated AND crashes > 0 INTO of_session, on_trial FROM agent.tasks
    WHERE task_id = NEW.workflow_uuid;
    IF NOT FOUND THEN RETURN NULL; END IF;
    IF NEW.function_name LIKE 'tool.%' THEN
        record := agent.as_json(coalesce(NEW.output, NEW.error));
        UPDATE agent.effects
        SET state = CASE record->>'outcome' WHEN 'unknown' THEN 'unknown'
                WHEN 'asked' THEN CASE WHEN record->>'settled' IS NULL THEN 'settled' ELSE 'started' END
                ELSE 'finished' END,
            finished_at = CASE WHEN record->>'outcome' IN ('unknown', 'asked') THEN NULL ELSE clock_timestamp() END
        WHERE task_id = NEW.workflow_uuid AND idempotency_key = record->>'idempotency_key';
        PERFORM agent.append_event(of_session, NEW.workflow_uuid, 'tool.finished', jsonb_build_object(
            'step', NEW.function_id, 'tool', substr(NEW.function_name, 6), 'call_id', record->'call_id',
            'outcome', coalesce(record->>'outcome', 'error'), 'settled', record->'settled', 'ms', took));
    ELSIF NEW.function_name LIKE '%\_\_model.request%' THEN
        record := agent.as_json(coalesce(NEW.output, NEW.error));
        PERFORM agent.append_event(of_session, NEW.workflow_uuid,
            CASE WHEN NEW.error IS NULL THEN 'model.responded' ELSE 'model.failed' END,
            jsonb_strip_nulls(jsonb_build_object('step', NEW.function_id, 'model', record->'v'->'model_name',
                'input_tokens', record->'v'->'usage'->'input_tokens',
                'output_tokens', record->'v'->'usage'->'output_tokens',
                'error', record->'message', 'ms', took)));
    END IF;
    IF on_trial THEN PERFORM agent.acquit(NEW.workflow_uuid); END IF;
    RETURN NULL;
END $$;

-- Sets a task aside for good, until a person says otherwise; its session goes on without it.
CREATE FUNCTION agent.bury(task text, why text, facts jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    dead agent.tasks%ROWTYPE;
    told agent.notices%ROWTYPE;
BEGIN
    UPDATE agent.tasks SET outcome = 'dead', error = why, finished_at = clock_timestamp(), is_isolated = false,
        evidence = facts || jsonb_build_object('last_step', (
            SELECT o.function_name FROM dbos.operation_outputs o WHERE o.workflow_uuid = task
            ORDER BY o.function_id DESC LIMIT 1))
    WHERE task_id = task AND outcome IS NULL RETURNING * INTO dead;
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE dbos.workflow_status SET status = 'MAX_RECOVERY_ATTEMPTS_EXCEEDED', owner_xid = NULL,
        completed_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
        updated_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint WHERE workflow_uuid = task;
    PERFORM agent.append_event(dead.session_id, task, 'task.dead', dead.evidence || jsonb_build_object('reason', why));
    INSERT INTO agent.notices (session_id, task_id, kind, body) VALUES (dead.session_id, task, 'dead', concat_ws(' ',
        format('“%s” was set aside: %s.', left(regexp_replace(dead.input, '\s+', ' ', 'g'), 200), why),
        'What it had recorded is kept, and nothing else is affected; the session goes on with your next message.',
        'Somebody has been told, and can try it again.'))
    RETURNING * INTO told;
    PERFORM agent.care('tend_session', 'tend:dead:' || task || ':' || told.notice_id, to_json(dead.session_id), to_json(task),
        to_json(facts->>'reason'), to_json('dead:' || task || ':' || told.notice_id), to_json(told.notice_id), to_json(told.times));
    PERFORM agent.raise_alert('dead:' || task, format('Task %s of session %s (agent %s) is dead: %s.', task,
            dead.session_id, dead.agent, why),
        'It was set aside, its user was told, and its session goes on.',
        format('Look: perdure dead-letters show %s. Then: perdure dead-letters retry %s, or discard %s.', task, task, task));
    UPDATE agent.sessions SET waits_until = NULL WHERE session_id = dead.session_id;
    PERFORM agent.end_trial(task, false);
    PERFORM agent.place_session(dead.session_id);
END $$;

-- Puts a dead letter back: the same task goes on from its records, or with other words a new one replaces it.
CREATE FUNCTION agent.retry(task text, words text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    dead agent.tasks%ROWTYPE;
    next_task text := task;
BEGIN
    SELECT * INTO dead FROM agent.tasks WHERE task_id = task FOR UPDATE;
    PERFORM agent.hold_dead(task);
    UPDATE agent.tasks SET evidence = NULL, crashes = 0, hangs = 0 WHERE task_id = task;
    IF words IS NULL OR words = dead.input THEN
        UPDATE agent.tasks SET outcome = NULL, error = NULL, finished_at = NULL, history_through = NULL WHERE task_id = task;
        UPDATE dbos.workflow_status SET status = 'ENQUEUED', recovery_attempts = 0, completed_at = NULL
        WHERE workflow_uuid = task;
        PERFORM agent.place_task(task);
    ELSE
        next_task := agent.replace_task(task, words, 'was tried again with other words');
    END IF;
    PERFORM agent.append_event(dead.session_id, task, 'task.retried',
        jsonb_strip_nulls(jsonb_build_object('as', next_task, 'input', left(words, 2000))));
    PERFORM agent.resolve_alert('dead:' || task);
    RETURN next_task;
END $$;

-- Leaves a dead letter for good.
CREATE FUNCTION agent.discard(task text, why text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM agent.hold_dead(task);
    UPDATE agent.tasks SET outcome = 'cancelled', error = concat_ws(': ', 'discarded', nullif(why, ''), error)
    WHERE task_id = task;
    UPDATE dbos.workflow_status SET status = 'CANCELLED' WHERE workflow_uuid = task;
    PERFORM agent.append_event(t.session_id, task, 'task.discarded', jsonb_strip_nulls(jsonb_build_object('reason', why)))
    FROM agent.tasks t WHERE t.task_id = task;
    PERFORM agent.resolve_alert('dead:' || task);
END $$;

-- Errors unless the task is a dead letter.
CREATE FUNCTION agent.hold_dead(task text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    state text;
BEGIN
    SELECT s.status INTO state FROM agent.task_status s WHERE s.task_id = task;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no task %', quote_literal(task) USING ERRCODE = 'PD404';
    ELSIF state <> 'dead' THEN
        RAISE EXCEPTION 'task % is %, not a dead letter', quote_literal(task), state USING ERRCODE = 'PD409';
    END IF;
END $$;

-- Accepts a task in the place of one that cannot go on, with the same words or others. It knows what that one did.
CREATE FUNCTION agent.replace_task(task text, words text, why text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    old       agent.tasks%ROWTYPE;
    following text;
BEGIN
    UPDATE agent.tasks SET outcome = 'cancelled', finished_at = coalesce(finished_at, clock_timestamp()), error = why
    WHERE task_id = task RETURNING * INTO old;
    UPDATE dbos.workflow_status SET status = 'CANCELLED', owner_xid = NULL WHERE workflow_uuid = task;
    INSERT INTO agent.tasks (task_id, session_id, agent, user_id, seq, kind, continues, input)
    VALUES (gen_random_uuid()::text, old.session_id, old.agent, old.user_id, old.seq, 'replacement', task,
        coalesce(words, old.input))
    RETURNING task_id INTO following;
    RETURN following;
END $$;

-- A task that the code of today cannot replay: what it did is kept, and a fresh task takes its place.
CREATE FUNCTION agent.hand_over(task text, owner text, difference text, new_messages jsonb) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    old       agent.tasks%ROWTYPE;
    following text;
BEGIN
    PERFORM agent.commit_task(task, owner, 'cancelled', NULL, difference, new_messages, NULL, '[]');
    SELECT * INTO STRICT old FROM agent.tasks WHERE task_id = task;
    following := agent.replace_task(task, NULL, difference);
    PERFORM agent.append_event(old.session_id, task, 'task.handed_over',
        jsonb_build_object('to', following, 'difference', difference));
    PERFORM agent.notice_interruption(old.session_id, task, 'planned', 'handover:' || task);
    RETURN following;
END $$;

-- The tool a task was calling: an effect that began, or a call of the last response that has no result.
CREATE FUNCTION agent.tool_under_way(task text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (SELECT e.tool FROM agent.effects e WHERE e.task_id = task AND e.state = 'started' ORDER BY e.started_at DESC LIMIT 1),
        (SELECT p->>'tool_name' FROM (
            SELECT agent.as_json(o.output)->'v' AS response FROM dbos.operation_outputs o
            WHERE o.workflow_uuid = task AND o.function_name LIKE '%\_\_model.request%' ORDER BY o.function_id DESC LIMIT 1) r,
            jsonb_array_elements(coalesce(r.response->'parts', '[]')) p
         WHERE p->>'part_kind' = 'tool-call' AND NOT EXISTS (
            SELECT 1 FROM dbos.operation_outputs d WHERE d.workflow_uuid = task AND d.function_name LIKE 'tool.%'
              AND agent.as_json(d.output)->>'call_id' = p->>'tool_call_id') LIMIT 1))
$$;

-- A task was on a worker that died: it waits, and the second time it is tried apart.
CREATE FUNCTION agent.suspect(task text, worker text, waits double precision[], isolate_after integer, wind interval)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    crashed agent.tasks%ROWTYPE;
    pause   double precision;
BEGIN
    UPDATE agent.tasks SET crashes = crashes + 1 WHERE task_id = task RETURNING * INTO crashed;
    INSERT INTO agent.crashes (worker_id, task_id, session_id, agent, tool)
    VALUES (worker, task, crashed.session_id, crashed.agent, agent.tool_under_way(task))
    ON CONFLICT DO NOTHING;
    IF crashed.crashes >= isolate_after OR EXISTS (
        SELECT 1 FROM agent.crashes c WHERE c.session_id = crashed.session_id AND c.is_blamed
          AND c.at > clock_timestamp() - wind) THEN
        UPDATE agent.tasks SET is_isolated = true WHERE task_id = task;
        PERFORM agent.append_event(crashed.session_id, task, 'task.isolated', jsonb_build_object('crashes', crashed.crashes));
    END IF;
    pause := waits[least(crashed.crashes, cardinality(waits))];
    IF pause > 0 THEN
        UPDATE agent.sessions SET waits_until = clock_timestamp() + make_interval(secs => pause)
        WHERE session_id = crashed.session_id;
    END IF;
    PERFORM agent.place_task(task);
    PERFORM agent.place_session(crashed.session_id);
END $$;

-- A task killed the worker that ran nothing else: it is the one.
CREATE FUNCTION agent.convict(task text, worker text, allowed integer, wind interval, pause double precision) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    guilty agent.tasks%ROWTYPE;
    how    text;
BEGIN
    SELECT * INTO guilty FROM agent.tasks WHERE task_id = task;
    SELECT coalesce(w.ended, 'the process is gone') INTO how FROM agent.workers w WHERE w.worker_id = worker;
    INSERT INTO agent.crashes (worker_id, task_id, session_id, agent, tool)
    VALUES (worker, task, guilty.session_id, guilty.agent, agent.tool_under_way(task))
    ON CONFLICT DO NOTHING;
    UPDATE agent.crashes SET is_blamed = true WHERE task_id = task;
    UPDATE agent.tasks SET crashes = crashes + 1 WHERE task_id = task;
    PERFORM agent.bury(task, format('it killed its worker, alone in a process of its own (%s)', how),
        jsonb_build_object('reason', 'crash', 'exit', how, 'attempts', guilty.crashes + 1, 'worker', worker,
            'tool', (SELECT c.tool FROM agent.crashes c WHERE c.task_id = task AND c.worker_id = worker)));
    PERFORM agent.trip(guilty.session_id, guilty.agent, allowed, wind, pause);
END $$;

-- Opens the breaker of the narrowest scope that has crashed too often: a session by its crashes, a tool or an agent by
-- the sessions it took down.
CREATE FUNCTION agent.trip(of_session text, of_agent text, allowed integer, wind interval, pause double precision)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    since   timestamptz := clock_timestamp() - wind;
    culprit text;
    struck  bigint;
BEGIN
    SELECT count(*) INTO struck FROM agent.crashes c WHERE c.session_id = of_session AND c.is_blamed AND c.at > since;
    IF struck > allowed THEN
        PERFORM agent.open_breaker('session:' || of_session, format('%s crashes in session %s', struck, of_session), pause);
    END IF;
    SELECT c.tool, count(DISTINCT c.session_id) INTO culprit, struck FROM agent.crashes c
    WHERE c.agent = of_agent AND c.is_blamed AND c.at > since AND c.tool IS NOT NULL
    GROUP BY c.tool ORDER BY 2 DESC LIMIT 1;
    IF struck > allowed THEN
        PERFORM agent.open_breaker('tool:' || of_agent || '/' || culprit,
            format('%s crashed in %s sessions', culprit, struck), pause);
        RETURN;
    END IF;
    SELECT count(DISTINCT c.session_id) INTO struck FROM agent.crashes c
    WHERE c.agent = of_agent AND c.is_blamed AND c.at > since;
    IF struck > allowed THEN
        PERFORM agent.open_breaker('agent:' || of_agent, format('%s crashed in %s sessions', of_agent, struck), pause);
    END IF;
END $$;

CREATE FUNCTION agent.open_breaker(of_scope text, why text, pause double precision) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    opened agent.breakers%ROWTYPE;
BEGIN
    INSERT INTO agent.breakers AS b (scope, reason, pause, until)
    VALUES (of_scope, why, open_breaker.pause, clock_timestamp() + make_interval(secs => open_breaker.pause))
    ON CONFLICT (scope) DO UPDATE SET state = 'open', reason = why, trial = NULL, openings = b.openings + 1,
        until = clock_timestamp() + make_interval(secs => b.pause * 2 ^ least(b.openings, 6))
        WHERE b.state = 'half-open'
    RETURNING * INTO opened;
    IF NOT FOUND THEN RETURN; END IF;
    PERFORM agent.raise_alert('breaker:' || of_scope, format('The breaker of %s is open: %s.', of_scope, why),
        'Its tasks wait and nothing else does; one of them is tried by itself later, and success closes the breaker.',
        'Find the cause: SELECT * FROM agent.dead_letters. Nothing has to be done to close the breaker.');
    PERFORM agent.place_session(w.session_id) FROM agent.waiting_in(of_scope) w;
END $$;

-- The sessions of a scope in which something waits.
CREATE FUNCTION agent.waiting_in(of_scope text) RETURNS TABLE (session_id text)
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT t.session_id FROM agent.tasks t JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
    WHERE s.status IN ('ENQUEUED', 'DELAYED')
      AND of_scope IN ('session:' || t.session_id, 'agent:' || t.agent, t.held_by)
$$;

-- Breakers whose time has come try one task, apart from everything else; those with nothing to try close.
CREATE FUNCTION agent.tend_breakers() RETURNS SETOF agent.breakers
LANGUAGE plpgsql AS $$
DECLARE
    due     agent.breakers%ROWTYPE;
    chosen  text;
    session text;
BEGIN
    UPDATE agent.breakers b SET state = 'open', trial = NULL WHERE b.state = 'half-open' AND NOT EXISTS (
        SELECT 1 FROM dbos.workflow_status s WHERE s.workflow_uuid = b.trial AND s.status IN ('PENDING', 'ENQUEUED', 'DELAYED'));
    FOR due IN SELECT * FROM agent.breakers WHERE state = 'open' AND until < clock_timestamp()
        FOR UPDATE SKIP LOCKED
    LOOP
        SELECT t.task_id, t.session_id INTO chosen, session
        FROM agent.tasks t JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
        WHERE s.status IN ('ENQUEUED', 'DELAYED')
          AND due.scope IN ('session:' || t.session_id, 'agent:' || t.agent, t.held_by)
        ORDER BY t.is_isolated DESC, t.accepted_at, t.seq LIMIT 1;
        IF chosen IS NULL THEN
            PERFORM agent.close_breaker(due.scope);
        ELSE
            UPDATE agent.breakers SET state = 'half-open', trial = chosen WHERE scope = due.scope;
            UPDATE agent.tasks SET is_isolated = true WHERE task_id = chosen;
            UPDATE agent.sessions SET waits_until = NULL WHERE session_id = session;
            PERFORM agent.append_event(session, chosen, 'breaker.tried', jsonb_build_object('scope', due.scope));
            PERFORM agent.place_session(session);
        END IF;
    END LOOP;
    -- Whoever waits without a reason any more was accepted while the reason went away.
    PERFORM agent.place_task(w.workflow_uuid) FROM (
        SELECT s.workflow_uuid FROM dbos.workflow_status s JOIN agent.tasks t ON t.task_id = s.workflow_uuid
        WHERE s.status = 'DELAYED' AND s.delay_until_epoch_ms > 253000000000000
          AND agent.runs_after(t.task_id, t.session_id, t.agent) IS DISTINCT FROM 'infinity'
        ORDER BY s.workflow_uuid FOR NO KEY UPDATE OF s SKIP LOCKED) w;
    RETURN QUERY SELECT * FROM agent.breakers;
END $$;

CREATE FUNCTION agent.close_breaker(of_scope text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM agent.breakers WHERE scope = of_scope;
    PERFORM agent.resolve_alert('breaker:' || of_scope);
    PERFORM agent.place_session(w.session_id) FROM agent.waiting_in(of_scope) w;
END $$;

-- The task that a half-open breaker tried has ended.
CREATE FUNCTION agent.end_trial(task text, survived boolean) RETURNS void
LANGUAGE sql AS $$
    SELECT CASE WHEN survived THEN agent.close_breaker(b.scope) ELSE agent.open_breaker(b.scope, b.reason, b.pause) END
    FROM agent.breakers b WHERE b.trial = task
$$;

-- Lets one suspect be tried by a process of its own, if one waits and nobody else is being tried. Says whether.
CREATE FUNCTION agent.claim_trial(child text, on_host text, release text, seconds double precision) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM dbos.workflow_status s
                   WHERE s.queue_name = 'perdure_isolation' AND s.status = 'ENQUEUED')
       OR NOT pg_try_advisory_xact_lock(hashtext('perdure.trial'))
       OR EXISTS (SELECT 1 FROM agent.workers w LEFT JOIN agent.tasks t ON t.task_id = w.trial
                  WHERE w.role = 'isolated' AND w.state IN ('alive', 'draining')
                    AND (w.trial IS NULL OR t.outcome IS NULL AND t.crashes > 0))
       OR (SELECT count(*) FROM agent.workers w WHERE w.role = 'isolated' AND w.state IN ('alive', 'draining')
           AND w.host = on_host) >= 8 THEN
        RETURN false;
    END IF;
    INSERT INTO agent.workers (worker_id, host, pid, process, version, beat_seconds, role)
    VALUES (child, on_host, 0, 'not yet born', release, greatest(seconds, 60), 'isolated');  -- it may be born slowly
    RETURN true;
END $$;

-- How a process ended, as seen by who started it; a dead letter that it left says so too.
CREATE FUNCTION agent.note_end(worker text, how text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agent.workers SET ended = how WHERE worker_id = worker;
    UPDATE agent.tasks SET evidence = evidence || jsonb_build_object('exit', how),
        error = format('it killed its worker, alone in a process of its own (%s)', how)
    WHERE outcome = 'dead' AND evidence->>'worker' = note_end.worker AND evidence->>'reason' = 'crash';
END $$;

-- Declares silent or provably gone workers dead and frees what they ran, whoever left it. One adopter at a time.
DROP FUNCTION agent.adopt_tasks(text, text[], boolean);
CREATE FUNCTION agent.adopt_tasks(
    me text, gone text[], judge_silence boolean, waits double precision[], isolate_after integer, allowed integer,
    wind double precision
) RETURNS TABLE (task text, session text, worker text)
LANGUAGE plpgsql AS $$
DECLARE
    ended     text;
    was_alone boolean;
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
        IF ended IS NOT NULL THEN
            PERFORM agent.place_task(task);
            CONTINUE;
        END IF;
        -- Only an end that somebody saw convicts: silence may be the network's, and a whole machine may have died.
        SELECT w.role = 'isolated' AND w.trial = task AND w.ended IS NOT NULL INTO was_alone
        FROM agent.workers w WHERE w.worker_id = worker;
        UPDATE agent.sessions s SET restarts = restarts + 1 WHERE s.session_id = session;
        PERFORM agent.append_event(session, task, 'worker.died', jsonb_build_object('worker', worker, 'adopted_by', me));
        IF was_alone THEN
            PERFORM agent.convict(task, worker, allowed, make_interval(secs => wind), waits[cardinality(waits)]);
        ELSE
            PERFORM agent.suspect(task, worker, waits, isolate_after, make_interval(secs => wind));
            PERFORM agent.notice_interruption(session, task, 'crash', worker || ':' || task);
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM agent.free_care(NULL);
END $$;

-- A step made no progress for too long: the task is tried again, and set aside when that has happened before.
CREATE FUNCTION agent.stall(task text, owner text, step text, seconds double precision) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    stuck agent.tasks%ROWTYPE;
BEGIN
    PERFORM agent.hold(task, owner);
    UPDATE agent.tasks SET hangs = hangs + 1 WHERE task_id = task RETURNING * INTO stuck;
    PERFORM agent.append_event(stuck.session_id, task, 'task.stalled',
        jsonb_build_object('step', step, 'seconds', seconds, 'hangs', stuck.hangs));
    UPDATE agent.sessions s SET restarts = restarts + 1 WHERE s.session_id = stuck.session_id;
    IF stuck.hangs > 1 THEN
        PERFORM agent.bury(task, format('hang: %s made no progress for %s s, %s times', step, seconds, stuck.hangs),
            jsonb_build_object('reason', 'hang', 'step', step, 'attempts', stuck.hangs));
        RETURN true;
    END IF;
    PERFORM agent.place_task(task);
    PERFORM agent.notice_interruption(stuck.session_id, task, 'hang', 'hang:' || task || ':' || stuck.hangs);
    RETURN false;
END $$;

-- A task waits, with its session, for the breaker of a tool that it wants to call.
CREATE FUNCTION agent.wait_for_tool(task text, owner text, of_scope text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    held agent.tasks%ROWTYPE;
BEGIN
    PERFORM agent.hold(task, owner);
    UPDATE agent.tasks SET is_isolated = true, held_by = of_scope WHERE task_id = task RETURNING * INTO held;
    PERFORM agent.append_event(held.session_id, task, 'task.held', jsonb_build_object('scope', of_scope));
    PERFORM agent.place_task(task);
    PERFORM agent.place_session(held.session_id);
END $$;

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
        PERFORM agent.place_task(task);
        CONTINUE WHEN ended IS NOT NULL;
        UPDATE agent.sessions s SET restarts = restarts + 1 WHERE s.session_id = session;
        PERFORM agent.append_event(session, task, 'worker.stopped', jsonb_build_object('worker', me, 'planned', true));
        PERFORM agent.notice_interruption(session, task, 'planned', me || ':' || task);
        RETURN NEXT task;
    END LOOP;
    PERFORM agent.free_care(me);
END $$;

-- Frees what this worker was given a while ago and does not run: claims whose answer got lost.
CREATE OR REPLACE FUNCTION agent.free_lost(me text, active text[], seconds double precision) RETURNS SETOF text
LANGUAGE sql AS $$
    SELECT lost.workflow_uuid FROM (
        SELECT s.workflow_uuid FROM dbos.workflow_status s JOIN agent.tasks t ON t.task_id = s.workflow_uuid
        WHERE s.status = 'PENDING' AND s.executor_id = me AND NOT s.workflow_uuid = ANY (active)
          AND s.started_at_epoch_ms < (extract(epoch FROM clock_timestamp()) - seconds) * 1000
        FOR NO KEY UPDATE OF s) lost, LATERAL agent.place_task(lost.workflow_uuid)
$$;

-- An execution that cannot go on gives its task back.
CREATE OR REPLACE FUNCTION agent.give_back(task text, owner text) RETURNS void
LANGUAGE sql AS $$
    SELECT agent.place_task(s.workflow_uuid) FROM dbos.workflow_status s
    WHERE s.workflow_uuid = task AND s.owner_xid = owner AND s.status = 'PENDING' FOR NO KEY UPDATE
$$;

-- The sentence a user reads after an interruption.
DROP FUNCTION agent.notice_body(text, integer, timestamptz, text, integer, integer, bigint, text);
CREATE FUNCTION agent.notice_body(notice_kind text, times integer, moment timestamptz, goal text, done integer,
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
            || format('; %s recorded steps are kept and will not run again.', steps),
        CASE WHEN doubts IS NULL THEN 'Nothing is in doubt.'
             ELSE format('In doubt, because nobody recorded how it ended: %s.', doubts) END,
        'Next: the task goes on by itself' || CASE WHEN goes_on = 'infinity' THEN ' as soon as it may.'
            WHEN goes_on > moment THEN to_char(goes_on AT TIME ZONE 'UTC', '" at "HH24:MI:SS" UTC."') ELSE '.' END,
        'If something here is wrong, correct it, and the correction counts.')
$$;

-- Tells a session's user, once per interruption, in the transaction that ends the interruption, and has the rest of
-- what is owed done beside the tasks: the handoff, and the message to the outside.
CREATE OR REPLACE FUNCTION agent.notice_interruption(of_session text, of_task text, notice_kind text, occasion text)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    known   jsonb;
    goal    text;
    doubts  text;
    steps   bigint;
    goes_on timestamptz;
    earlier agent.notices%ROWTYPE;
    told    agent.notices%ROWTYPE;
BEGIN
    SELECT document INTO known FROM agent.checkpoints WHERE session_id = of_session;
    SELECT coalesce(nullif(known->>'goal', ''), left(t.input, 200)), agent.runs_after(of_task, of_session, t.agent)
    INTO goal, goes_on FROM agent.tasks t WHERE t.task_id = of_task;
    SELECT string_agg(DISTINCT e.tool, ', ') INTO doubts FROM agent.effects e
    WHERE e.task_id = of_task AND e.state IN ('started', 'unknown');
    SELECT count(*) INTO steps FROM dbos.operation_outputs o WHERE o.workflow_uuid = of_task;
    SELECT * INTO earlier FROM agent.notices n
    WHERE n.session_id = of_session AND n.acknowledged_at IS NULL AND n.at > clock_timestamp() - interval '1 minute'
      AND n.kind IN ('crash', 'planned', 'hang')
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
        jsonb_array_length(coalesce(known->'plan', '[]')), steps, doubts, goes_on)
    WHERE notice_id = told.notice_id RETURNING * INTO told;
    PERFORM agent.append_event(of_session, of_task, 'restart.noticed',
        jsonb_build_object('notice_id', told.notice_id, 'kind', told.kind, 'times', told.times, 'body', told.body));
    PERFORM agent.care('tend_session', 'tend:' || occasion, to_json(of_session), to_json(of_task), to_json(notice_kind),
        to_json(occasion), to_json(told.notice_id), to_json(told.times));
END $$;

-- The state of the work as one session's next request needs it. After an interruption, also what the task has done
-- and, when no checkpoint was kept, the newest handoff; a task that replaces another one gets that one's.
CREATE OR REPLACE FUNCTION agent.restored(of_session text, of_task text, is_recovering boolean) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'checkpoint', (SELECT c.document FROM agent.checkpoints c WHERE c.session_id = of_session),
        'corrections', coalesce((SELECT jsonb_agg(n.correction ORDER BY n.notice_id) FROM agent.notices n
            WHERE n.session_id = of_session AND n.correction IS NOT NULL), '[]'),
        'interruption', (SELECT n.body FROM agent.notices n
            WHERE n.session_id = of_session AND n.task_id IN (of_task, replaced.task_id)
            ORDER BY n.notice_id DESC LIMIT 1),
        'worked', CASE WHEN is_recovering THEN agent.worked(of_session, coalesce(replaced.task_id, of_task)) ELSE '[]' END,
        'handoff', CASE WHEN is_recovering THEN (
            SELECT CASE WHEN replaced.task_id IS NULL AND EXISTS (
                            SELECT 1 FROM agent.checkpoints c WHERE c.session_id = of_session)
                        THEN h.document->>'briefing' ELSE h.markdown END
            FROM agent.handoffs h WHERE h.session_id = of_session AND h.task_id IN (of_task, replaced.task_id)
            ORDER BY h.handoff_id DESC LIMIT 1) END,
        'pending', coalesce((SELECT jsonb_agg(left(p.input, 200) ORDER BY p.seq) FROM (
            SELECT t.input, t.seq FROM agent.tasks t JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
            WHERE t.session_id = of_session AND t.task_id <> of_task AND s.status IN ('ENQUEUED', 'DELAYED')
            ORDER BY t.seq LIMIT 10) p), '[]'))
    FROM (SELECT (SELECT t.continues FROM agent.tasks t WHERE t.task_id = of_task AND t.kind = 'replacement') AS task_id) replaced
$$;

CREATE OR REPLACE VIEW agent.task_status AS
SELECT t.task_id, t.session_id, t.agent, t.user_id, t.seq, t.kind, t.continues, t.input,
    coalesce(t.outcome, CASE s.status
        WHEN 'PENDING' THEN 'running' WHEN 'SUCCESS' THEN 'done' WHEN 'ERROR' THEN 'failed'
        WHEN 'CANCELLED' THEN 'cancelled' WHEN 'MAX_RECOVERY_ATTEMPTS_EXCEEDED' THEN 'dead' ELSE 'queued' END) AS status,
    t.crashes, t.worker_id,
    coalesce(t.error, (SELECT coalesce(agent.as_json(o.error)->>'message', o.error)
                       FROM dbos.workflow_output o WHERE o.workflow_uuid = t.task_id)) AS error,
    t.output,
    (SELECT count(*) FROM dbos.operation_outputs o WHERE o.workflow_uuid = t.task_id) AS steps,
    t.accepted_at, t.started_at, t.finished_at,
    CASE WHEN s.status = 'DELAYED' THEN to_timestamp(s.delay_until_epoch_ms / 1000.0) END AS runs_after,
    t.hangs, t.is_isolated, t.evidence
FROM agent.tasks t LEFT JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id;

CREATE OR REPLACE VIEW agent.dead_letters AS
SELECT task_id, session_id, agent, input, coalesce(error, 'restarted too often') AS reason, crashes,
    coalesce(finished_at, accepted_at) AS at, hangs, steps, evidence
FROM agent.task_status WHERE status = 'dead';

CREATE OR REPLACE VIEW agent.session_status AS
SELECT s.session_id, s.agent, s.user_id, s.title,
    CASE WHEN s.mode <> 'open' THEN s.mode
         WHEN EXISTS (SELECT 1 FROM agent.breakers b WHERE b.scope = 'session:' || s.session_id) THEN 'quarantined'
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
