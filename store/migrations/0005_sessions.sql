-- Sessions that wait, branch and end: pause, steering, people, forks, rewinds, deletion.

ALTER TABLE agent.sessions ADD COLUMN taken_by text, ADD COLUMN closed_at timestamptz;

ALTER TABLE agent.tasks ADD COLUMN control text CHECK (control IN ('cancel', 'interrupt'));

ALTER TABLE agent.tasks DROP CONSTRAINT tasks_kind_check,
    ADD CONSTRAINT tasks_kind_check CHECK (kind IN ('input', 'continuation', 'replacement', 'person'));

ALTER TABLE agent.messages ADD COLUMN seq bigint NOT NULL DEFAULT 0;

ALTER TABLE agent.compactions ADD COLUMN seq bigint NOT NULL DEFAULT 0;

ALTER TABLE agent.approvals ADD COLUMN kind text NOT NULL DEFAULT 'approval' CHECK (kind IN ('approval', 'question')),
    ADD COLUMN edited jsonb;

ALTER TABLE agent.approvals DROP CONSTRAINT approvals_decision_check,
    ADD CONSTRAINT approvals_decision_check CHECK (decision IN ('approved', 'denied', 'answered', 'expired'));

-- The segments of journals that make up the past of a session that was forked or rewound; others have none here.
CREATE TABLE agent.lineage (
    session_id text NOT NULL REFERENCES agent.sessions ON DELETE CASCADE,
    part       integer NOT NULL,
    of_session text NOT NULL REFERENCES agent.sessions,
    after      bigint NOT NULL,
    through    bigint,
    PRIMARY KEY (session_id, part)
);

CREATE INDEX lineage_by_origin ON agent.lineage (of_session);

-- What the checkpoint was at a place in the journal.
CREATE TABLE agent.checkpoint_versions (
    session_id text NOT NULL REFERENCES agent.sessions ON DELETE CASCADE,
    seq        bigint NOT NULL,
    document   jsonb NOT NULL,
    PRIMARY KEY (session_id, seq)
);

-- Words for a running task. `place` is the message of the run that they stand with, once they are delivered.
CREATE TABLE agent.steers (
    steer_id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id      text NOT NULL REFERENCES agent.sessions ON DELETE CASCADE,
    task_id         text NOT NULL,
    input           text NOT NULL,
    idempotency_key text,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    place           integer
);

CREATE INDEX steers_by_task ON agent.steers (task_id);

CREATE UNIQUE INDEX steers_by_key ON agent.steers (session_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

UPDATE agent.messages m SET seq = coalesce((SELECT max(j.seq) FROM agent.journal j
    WHERE j.session_id = m.session_id AND j.task_id = m.task_id AND j.kind LIKE 'task.%'), 0);

UPDATE agent.compactions c SET seq = coalesce((SELECT max(j.seq) FROM agent.journal j
    WHERE j.session_id = c.session_id AND j.kind = 'context.compacted' AND (j.data->>'through')::integer = c.through), 0);

-- The past of a session, oldest segment first: a row of `session_id` counts when after < seq <= through.
CREATE FUNCTION agent.past(of_session text) RETURNS TABLE (session_id text, after bigint, through bigint)
LANGUAGE sql STABLE AS $$
    SELECT l.of_session, l.after, l.through FROM agent.lineage l WHERE l.session_id = past.of_session
    UNION ALL
    SELECT past.of_session, 0::bigint, NULL::bigint
    WHERE NOT EXISTS (SELECT 1 FROM agent.lineage l WHERE l.session_id = past.of_session)
$$;

-- The newest compaction of a session's past.
CREATE FUNCTION agent.last_compaction(of_session text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('through', c.through, 'summary', c.summary)
    FROM agent.past(of_session) p JOIN agent.compactions c
      ON c.session_id = p.session_id AND c.seq > p.after AND (p.through IS NULL OR c.seq <= p.through)
    ORDER BY c.through DESC LIMIT 1
$$;

-- Accepts one input: the same key gives the same task, and any refusal leaves nothing behind. While a task runs, the
-- input waits for its turn (queue), reaches that task before its next request (steer), or ends it (interrupt).
DROP FUNCTION agent.enqueue(text, text, text, text, text, integer);
CREATE FUNCTION agent.enqueue(
    agent           text,
    input           text,
    session_id      text DEFAULT NULL,
    user_id         text DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    max_bytes       integer DEFAULT 1048576,
    when_busy       text DEFAULT 'queue'
) RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    given_agent   text := enqueue.agent;
    given_session text := coalesce(enqueue.session_id, gen_random_uuid()::text);
    given_user    text := enqueue.user_id;
    given_key     text := enqueue.idempotency_key;
    new_task      text := gen_random_uuid()::text;
    existing      text;
    running       agent.tasks%ROWTYPE;
    owner         agent.sessions%ROWTYPE;
BEGIN
    IF given_key IS NOT NULL THEN
        SELECT t.task_id INTO existing FROM agent.tasks t
        WHERE coalesce(t.user_id, '') = coalesce(given_user, '') AND t.idempotency_key = given_key;
        IF FOUND THEN RETURN existing; END IF;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM agent.agents a WHERE a.name = given_agent) THEN
        RAISE EXCEPTION 'there is no agent named %; registered are: %', quote_literal(coalesce(given_agent, '')),
            coalesce((SELECT string_agg(a.name, ', ' ORDER BY a.name) FROM agent.agents a), 'none yet, start a worker first')
            USING ERRCODE = 'PD404';
    END IF;
    IF enqueue.input IS NULL OR btrim(enqueue.input, E' \t\r\n') = '' THEN
        RAISE EXCEPTION 'the input is empty' USING ERRCODE = 'PD400';
    END IF;
    IF octet_length(enqueue.input) > max_bytes THEN
        RAISE EXCEPTION 'the input has % bytes; at most % are accepted', octet_length(enqueue.input), max_bytes
            USING ERRCODE = 'PD413';
    END IF;
    IF given_session = '' OR length(given_session) > 200 OR given_session ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'a session id has 1 to 200 characters and no control characters' USING ERRCODE = 'PD400';
    END IF;
    IF length(given_user) > 200 OR length(given_key) > 500 THEN
        RAISE EXCEPTION 'a user id has at most 200 characters, an idempotency key at most 500' USING ERRCODE = 'PD400';
    END IF;
    IF enqueue.when_busy NOT IN ('queue', 'steer', 'interrupt') THEN
        RAISE EXCEPTION 'when_busy is %; allowed are queue, steer and interrupt', quote_literal(enqueue.when_busy)
            USING ERRCODE = 'PD400';
    END IF;

    IF enqueue.when_busy <> 'queue' THEN
        -- The session's lock decides whether the running task has ended before or after these words came.
        SELECT s.* INTO owner FROM agent.sessions s WHERE s.session_id = given_session FOR UPDATE;
        IF FOUND THEN
            PERFORM agent.check_owner(owner, given_agent, given_user);
            SELECT t.* INTO running FROM agent.tasks t JOIN dbos.workflow_status w ON w.workflow_uuid = t.task_id
            WHERE t.session_id = given_session AND w.status = 'PENDING' AND t.outcome IS NULL;
        END IF;
        IF running.task_id IS NOT NULL AND enqueue.when_busy = 'steer' THEN
            INSERT INTO agent.steers (session_id, task_id, input, idempotency_key)
            VALUES (given_session, running.task_id, enqueue.input, given_key) ON CONFLICT DO NOTHING;
            IF FOUND THEN
                PERFORM agent.append_event(given_session, running.task_id, 'steer.accepted',
                    jsonb_build_object('input', left(enqueue.input, 2000)));
            END IF;
            RETURN running.task_id;
        ELSIF running.task_id IS NOT NULL THEN
            UPDATE agent.tasks SET control = 'interrupt' WHERE task_id = running.task_id AND control IS NULL;
            PERFORM agent.append_event(given_session, running.task_id, 'task.interrupted', '{}');
        END IF;
    END IF;

    INSERT INTO agent.tasks (task_id, session_id, agent, user_id, input, idempotency_key, seq)
    VALUES (new_task, given_session, given_agent, given_user, enqueue.input, given_key, running.seq)
    ON CONFLICT (coalesce(user_id, ''), idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING;
    IF NOT FOUND THEN
        SELECT t.task_id INTO STRICT existing FROM agent.tasks t
        WHERE coalesce(t.user_id, '') = coalesce(given_user, '') AND t.idempotency_key = given_key;
        RETURN existing;
    END IF;

    INSERT INTO agent.sessions (session_id, agent, user_id, title)
    VALUES (given_session, given_agent, given_user,
            left(regexp_replace(btrim(enqueue.input), '\s+', ' ', 'g'), 80))
    ON CONFLICT (session_id) DO NOTHING;
    IF NOT FOUND THEN
        SELECT s.* INTO owner FROM agent.sessions s WHERE s.session_id = given_session;
        PERFORM agent.check_owner(owner, given_agent, given_user);
    END IF;
    RETURN new_task;
END $$;

-- Errors unless the session is this user's, this agent's, and open.
CREATE FUNCTION agent.check_owner(owner agent.sessions, given_agent text, given_user text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF owner.user_id IS DISTINCT FROM given_user THEN
        RAISE EXCEPTION 'session % belongs to another user', quote_literal(owner.session_id) USING ERRCODE = 'PD403';
    ELSIF owner.agent <> given_agent THEN
        RAISE EXCEPTION 'session % belongs to agent %, not to %', quote_literal(owner.session_id),
            quote_literal(owner.agent), quote_literal(given_agent) USING ERRCODE = 'PD409';
    ELSIF owner.mode = 'closed' THEN
        RAISE EXCEPTION 'session % is closed', quote_literal(owner.session_id) USING ERRCODE = 'PD409';
    END IF;
END $$;

-- Runs when the accepting transaction commits: place in the session, journal, DBOS row.
CREATE OR REPLACE FUNCTION agent.accept_task() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    place integer;
    after timestamptz;
BEGIN
    IF NEW.outcome IS NOT NULL THEN RETURN NULL; END IF;  -- a person's words, or an imported task: nothing is to run
    IF NEW.seq IS NULL THEN
        UPDATE agent.sessions SET task_seq = task_seq + 1 WHERE session_id = NEW.session_id RETURNING task_seq INTO place;
    ELSE
        place := NEW.seq;  -- the task that replaces or interrupts another one takes its place
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
    SELECT * INTO STRICT known FROM agent.sessions WHERE session_id = opened.session_id;
    SELECT s.queue_name INTO on_queue FROM dbos.workflow_status s WHERE s.workflow_uuid = task;
    IF on_queue IS DISTINCT FROM (CASE WHEN opened.is_isolated THEN 'perdure_isolation' ELSE 'perdure' END)
       OR known.mode = 'paused' AND opened.outcome IS NULL THEN
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
    UPDATE agent.tasks SET worker_id = worker, started_at = coalesce(started_at, clock_timestamp()),
        history_through = coalesce(history_through, known.messages)
    WHERE task_id = task RETURNING * INTO opened;
    RETURN jsonb_build_object(
        'task_id', task, 'session_id', opened.session_id, 'agent', opened.agent, 'user_id', opened.user_id,
        'kind', opened.kind, 'continues', opened.continues, 'input', opened.input,
        'history_through', opened.history_through, 'outcome', opened.outcome, 'error', opened.error,
        'is_recovering', began OR opened.kind = 'replacement',
        'decisions', coalesce((
            SELECT jsonb_agg(jsonb_build_object('call_id', call_id, 'decision', decision, 'note', note, 'kind', a.kind,
                'arguments', arguments, 'edited', edited, 'idempotency_key', idempotency_key) ORDER BY call_id)
            FROM agent.approvals a WHERE a.task_id = opened.continues), '[]'),
        'compaction', agent.last_compaction(opened.session_id), 'control', opened.control,
        'steers', agent.steers_of(task));
END $$;

-- Ends a task: messages appended, outcome set, questions asked. The first commit wins. Words that came too late for
-- it are a task of their own.
CREATE OR REPLACE FUNCTION agent.commit_task(
    task text, owner text, result text, result_output jsonb, result_error text,
    new_messages jsonb, tokens integer, questions jsonb
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    done   agent.tasks%ROWTYPE;
    before integer;
    moment bigint;
BEGIN
    PERFORM agent.hold(task, owner);
    UPDATE agent.tasks SET outcome = result, output = result_output, error = result_error, finished_at = clock_timestamp()
    WHERE task_id = task AND outcome IS NULL RETURNING * INTO done;
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE agent.sessions SET messages = messages + jsonb_array_length(new_messages),
        context_tokens = coalesce(tokens, context_tokens)
    WHERE session_id = done.session_id RETURNING messages - jsonb_array_length(new_messages) INTO before;
    UPDATE agent.checkpoints c SET expires_at = CASE WHEN EXISTS (
            SELECT 1 FROM jsonb_array_elements(c.document->'plan') p WHERE p->>'status' <> 'done')
        THEN NULL ELSE clock_timestamp() + interval '30 days' END
    WHERE c.session_id = done.session_id;
    INSERT INTO agent.approvals (task_id, call_id, session_id, tool, arguments, reason, idempotency_key, kind, expires_at)
    SELECT task, q->>'call_id', done.session_id, q->>'tool', q->'arguments', q->>'reason', q->>'idempotency_key',
        coalesce(q->>'kind', 'approval'), clock_timestamp() + make_interval(secs => (q->>'expires_seconds')::double precision)
    FROM jsonb_array_elements(questions) q;
    PERFORM agent.append_event(done.session_id, task, 'approval.requested', jsonb_build_object('task_id', task,
        'call_id', a.call_id, 'tool', a.tool, 'arguments', a.arguments, 'reason', a.reason, 'kind', a.kind,
        'idempotency_key', a.idempotency_key, 'expires_at', a.expires_at))
    FROM agent.approvals a WHERE a.task_id = task;
    moment := agent.append_event(done.session_id, task,
        CASE result WHEN 'done' THEN 'task.finished' WHEN 'waiting' THEN 'task.waited'
             WHEN 'cancelled' THEN 'task.cancelled' ELSE 'task.failed' END,
        jsonb_strip_nulls(jsonb_build_object('status', result, 'error', left(result_error, 2000))));
    INSERT INTO agent.messages (session_id, position, task_id, message, seq)
    SELECT done.session_id, before + m.ordinality, task, m.value, moment
    FROM jsonb_array_elements(new_messages) WITH ORDINALITY m;
    INSERT INTO agent.tasks (task_id, session_id, agent, user_id, input)
    SELECT gen_random_uuid()::text, done.session_id, done.agent, done.user_id, s.input
    FROM agent.steers s WHERE s.task_id = task AND s.place IS NULL ORDER BY s.steer_id;
    DELETE FROM agent.steers WHERE task_id = task AND place IS NULL;
    IF done.is_isolated THEN
        PERFORM agent.acquit(task);
        PERFORM agent.end_trial(task, true);
        PERFORM agent.place_session(done.session_id);
    END IF;
END $$;

-- What a running task has to do before its next step: nothing, wait (pause) or end (cancel, interrupt).
CREATE FUNCTION agent.wanted(task text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT coalesce(t.control, CASE WHEN s.mode = 'paused' THEN 'pause' END)
    FROM agent.tasks t JOIN agent.sessions s USING (session_id) WHERE t.task_id = task
$$;

-- Opens an effect before it runs. 'fresh' when it may run, 'in doubt' when an earlier start has no recorded end, and
-- 'pause', 'cancel' or 'interrupt' when it may not.
CREATE OR REPLACE FUNCTION agent.start_effect(
    task text, owner text, worker text, key text, call text, tool_name text, args jsonb, in_doubt text
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    of_session text;
    wish       text;
    earlier    agent.effects%ROWTYPE;
BEGIN
    PERFORM agent.hold(task, owner);
    wish := agent.wanted(task);
    IF wish IS NOT NULL THEN RETURN wish; END IF;
    SELECT session_id INTO STRICT of_session FROM agent.tasks WHERE task_id = task;
    SELECT * INTO earlier FROM agent.effects WHERE idempotency_key = key FOR UPDATE;
    IF earlier.task_id = task AND earlier.state = 'started' AND earlier.owner = start_effect.owner THEN
        RETURN 'fresh';  -- this very execution said so before, and the answer got lost
    ELSIF earlier.task_id = task THEN
        UPDATE agent.effects SET attempts = attempts + 1, owner = start_effect.owner, worker_id = worker
        WHERE idempotency_key = key;
        PERFORM agent.append_event(of_session, task, 'effect.doubted', jsonb_build_object(
            'tool', tool_name, 'call_id', call, 'idempotency_key', key, 'policy', in_doubt,
            'worker', earlier.worker_id, 'started_at', earlier.started_at));
        RETURN 'in doubt';
    END IF;
    -- A row of another task is the question a person has answered: the call now belongs to the continuation.
    INSERT INTO agent.effects AS e
        (idempotency_key, session_id, task_id, call_id, tool, arguments, policy, owner, worker_id)
    VALUES (key, of_session, task, call, tool_name, args, in_doubt, start_effect.owner, worker)
    ON CONFLICT (idempotency_key) DO UPDATE SET task_id = task, arguments = args, state = 'started',
        owner = start_effect.owner, worker_id = worker, attempts = e.attempts + 1;
    PERFORM agent.append_event(of_session, task, 'tool.started', jsonb_build_object(
        'tool', tool_name, 'call_id', call, 'idempotency_key', key, 'arguments', args));
    RETURN 'fresh';
END $$;

-- A running task of a paused session waits where it stands.
CREATE FUNCTION agent.stop_here(task text, owner text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM agent.hold(task, owner);
    PERFORM agent.append_event(t.session_id, task, 'task.paused', '{}') FROM agent.tasks t WHERE t.task_id = task;
    PERFORM agent.place_task(task);
END $$;

-- Words for a task, in the order they came.
CREATE FUNCTION agent.steers_of(task text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_object('input', s.input, 'place', s.place) ORDER BY s.steer_id), '[]')
    FROM agent.steers s WHERE s.task_id = task
$$;

-- Words for a running task take their place in its conversation, once.
CREATE FUNCTION agent.deliver_steers(task text, owner text, at_place integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM agent.hold(task, owner);
    PERFORM agent.append_event(s.session_id, task, 'steer.delivered', jsonb_build_object('input', left(s.input, 2000)))
    FROM agent.steers s WHERE s.task_id = task AND s.place IS NULL;
    UPDATE agent.steers SET place = at_place WHERE task_id = task AND place IS NULL;
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
        'wanted', agent.wanted(of_task),
        'steers', agent.steers_of(of_task),
        'pending', coalesce((SELECT jsonb_agg(left(p.input, 200) ORDER BY p.seq) FROM (
            SELECT t.input, t.seq FROM agent.tasks t JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
            WHERE t.session_id = of_session AND t.task_id <> of_task AND s.status IN ('ENQUEUED', 'DELAYED')
            ORDER BY t.seq LIMIT 10) p), '[]'))
    FROM (SELECT (SELECT t.continues FROM agent.tasks t WHERE t.task_id = of_task AND t.kind = 'replacement') AS task_id) replaced
$$;

-- Keeps the state of the work; only the execution that owns the task may.
CREATE OR REPLACE FUNCTION agent.write_checkpoint(task text, owner text, state jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    of_session text;
BEGIN
    PERFORM agent.hold(task, owner);
    SELECT t.session_id INTO STRICT of_session FROM agent.tasks t WHERE t.task_id = task;
    PERFORM agent.keep_checkpoint(of_session, state);
END $$;

-- The checkpoint is this, and was this at this place in the journal.
CREATE FUNCTION agent.keep_checkpoint(of_session text, state jsonb) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO agent.checkpoints AS c (session_id, document) VALUES (of_session, state)
    ON CONFLICT (session_id) DO UPDATE SET document = excluded.document, updated_at = clock_timestamp(), expires_at = NULL;
    INSERT INTO agent.checkpoint_versions (session_id, seq, document)
    SELECT of_session, s.journal_seq, state FROM agent.sessions s WHERE s.session_id = of_session
    ON CONFLICT (session_id, seq) DO UPDATE SET document = excluded.document
$$;

-- Records what a request left out. Repeating it changes nothing.
CREATE OR REPLACE FUNCTION agent.record_compaction(
    task text, owner text, cut integer, before integer, remaining integer, how text, words text, score real, remark text
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    of_session text;
    since      integer;
    moment     bigint;
BEGIN
    PERFORM agent.hold(task, owner);
    SELECT t.session_id INTO STRICT of_session FROM agent.tasks t WHERE t.task_id = task;
    since := coalesce((agent.last_compaction(of_session)->>'through')::integer, 0);
    INSERT INTO agent.compactions (session_id, through, after, task_id, tokens_before, tokens_after, strategy, summary,
        exam_score, note)
    VALUES (of_session, cut, since, task, before, remaining, how, words, score, remark) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        UPDATE agent.sessions SET compactions = compactions + 1 WHERE session_id = of_session;
        moment := agent.append_event(of_session, task, 'context.compacted', jsonb_strip_nulls(jsonb_build_object(
            'through', cut, 'after', since, 'tokens_before', before, 'tokens_after', remaining, 'strategy', how,
            'exam_score', score, 'note', remark)));
        UPDATE agent.compactions SET seq = moment WHERE session_id = of_session AND through = cut;
    END IF;
END $$;

-- Records a person's answer once; the last answer of a task accepts the task that continues it.
DROP FUNCTION agent.decide(text, text, text, text);
CREATE FUNCTION agent.decide(task text, call text, answer text, remark text, other_arguments jsonb) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    asked     agent.approvals%ROWTYPE;
    waiting   agent.tasks%ROWTYPE;
    following text;
BEGIN
    SELECT * INTO waiting FROM agent.tasks WHERE task_id = task FOR UPDATE;
    SELECT * INTO asked FROM agent.approvals WHERE task_id = task AND call_id = call;
    IF asked IS NULL THEN
        RAISE EXCEPTION 'task % asks nothing about call %', quote_literal(task), quote_literal(call) USING ERRCODE = 'PD404';
    ELSIF asked.decision IS NOT NULL AND asked.decision <> answer THEN
        RAISE EXCEPTION 'call % was already %', quote_literal(call), asked.decision USING ERRCODE = 'PD409';
    ELSIF asked.kind = 'question' AND answer = 'approved' THEN
        RAISE EXCEPTION 'call % is a question: answer it', quote_literal(call) USING ERRCODE = 'PD409';
    ELSIF asked.kind = 'approval' AND answer = 'answered' THEN
        RAISE EXCEPTION 'call % asks for approval: approve or deny it', quote_literal(call) USING ERRCODE = 'PD409';
    ELSIF asked.decision IS NULL THEN
        UPDATE agent.approvals SET decision = answer, note = remark, edited = other_arguments, decided_at = clock_timestamp()
        WHERE task_id = task AND call_id = call;
        IF answer IN ('denied', 'expired') THEN
            UPDATE agent.effects SET state = 'settled' WHERE idempotency_key = asked.idempotency_key;
        END IF;
        PERFORM agent.append_event(asked.session_id, task, CASE answer WHEN 'approved' THEN 'approval.given'
                WHEN 'answered' THEN 'question.answered' WHEN 'expired' THEN 'approval.expired' ELSE 'approval.denied' END,
            jsonb_strip_nulls(jsonb_build_object('call_id', call, 'tool', asked.tool, 'note', remark,
                'arguments', other_arguments)));
        IF NOT EXISTS (SELECT 1 FROM agent.approvals WHERE task_id = task AND decision IS NULL) THEN
            INSERT INTO agent.tasks (task_id, session_id, agent, user_id, kind, continues, input)
            VALUES (gen_random_uuid()::text, waiting.session_id, waiting.agent, waiting.user_id, 'continuation', task,
                waiting.input)
            ON CONFLICT DO NOTHING;
        END IF;
    END IF;
    SELECT task_id INTO following FROM agent.tasks WHERE continues = task;
    RETURN following;
END $$;

-- Questions whose time is over are answered with that.
CREATE FUNCTION agent.expire_approvals() RETURNS SETOF text
LANGUAGE sql AS $$
    SELECT agent.decide(a.task_id, a.call_id, 'expired', 'nobody answered in time', NULL) FROM agent.approvals a
    WHERE a.decision IS NULL AND a.expires_at < clock_timestamp() ORDER BY a.task_id, a.call_id
$$;

-- Errors unless there is such a session; its row stays locked.
CREATE FUNCTION agent.hold_session(of_session text) RETURNS agent.sessions
LANGUAGE plpgsql AS $$
DECLARE
    known agent.sessions%ROWTYPE;
BEGIN
    SELECT * INTO known FROM agent.sessions WHERE session_id = of_session FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no session %', quote_literal(of_session) USING ERRCODE = 'PD404';
    END IF;
    RETURN known;
END $$;

-- Sets whether a session runs what it is given: open, paused, or closed. Repeating it changes nothing.
CREATE FUNCTION agent.set_mode(of_session text, wish text, person text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    known agent.sessions%ROWTYPE := agent.hold_session(of_session);
BEGIN
    IF wish = 'closed' AND EXISTS (SELECT 1 FROM agent.tasks t JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
        WHERE t.session_id = of_session AND s.status IN ('PENDING', 'ENQUEUED', 'DELAYED')) THEN
        RAISE EXCEPTION 'session % has open tasks: wait for them or cancel them', quote_literal(of_session)
            USING ERRCODE = 'PD409';
    END IF;
    IF known.mode = wish AND known.taken_by IS NOT DISTINCT FROM person THEN RETURN; END IF;
    UPDATE agent.sessions SET mode = wish, taken_by = person,
        closed_at = CASE WHEN wish = 'closed' THEN clock_timestamp() END WHERE session_id = of_session;
    PERFORM agent.append_event(of_session, NULL, CASE WHEN person IS NOT NULL THEN 'session.taken'
            WHEN known.taken_by IS NOT NULL THEN 'session.given_back' WHEN wish = 'paused' THEN 'session.paused'
            WHEN wish = 'closed' THEN 'session.closed' WHEN known.mode = 'closed' THEN 'session.reopened'
            ELSE 'session.resumed' END,
        jsonb_strip_nulls(jsonb_build_object('by', coalesce(person, known.taken_by))));
    PERFORM agent.place_session(of_session);
END $$;

-- A person's words in the agent's place: part of the conversation like the agent's own.
CREATE FUNCTION agent.speak(of_session text, person text, words text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    known  agent.sessions%ROWTYPE := agent.hold_session(of_session);
    spoken text := gen_random_uuid()::text;
    moment bigint;
BEGIN
    IF known.taken_by IS DISTINCT FROM person THEN
        RAISE EXCEPTION 'session % is not in the hands of %: take it over first', quote_literal(of_session),
            quote_literal(person) USING ERRCODE = 'PD409';
    END IF;
    UPDATE agent.sessions SET task_seq = task_seq + 1, messages = messages + 1 WHERE session_id = of_session
    RETURNING * INTO known;
    INSERT INTO agent.tasks (task_id, session_id, agent, user_id, seq, kind, input, outcome, output, started_at, finished_at)
    VALUES (spoken, of_session, known.agent, known.user_id, known.task_seq, 'person', words, 'done', to_jsonb(words),
        clock_timestamp(), clock_timestamp());
    moment := agent.append_event(of_session, spoken, 'person.spoke', jsonb_build_object('by', person, 'text', left(words, 2000)));
    INSERT INTO agent.messages (session_id, position, task_id, message, seq) VALUES (of_session, known.messages, spoken,
        jsonb_build_object('kind', 'response', 'parts', jsonb_build_array(
            jsonb_build_object('part_kind', 'text', 'content', words))), moment);
    RETURN spoken;
END $$;

-- The session is the agent's again, and knows what the person did.
CREATE FUNCTION agent.give_session_back(of_session text, words text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    known agent.sessions%ROWTYPE := agent.hold_session(of_session);
    state jsonb;
BEGIN
    IF known.taken_by IS NULL THEN
        RAISE EXCEPTION 'session % is in nobody''s hands', quote_literal(of_session) USING ERRCODE = 'PD409';
    END IF;
    PERFORM agent.set_mode(of_session, 'open', NULL);
    IF words IS NOT NULL THEN
        SELECT document INTO state FROM agent.checkpoints WHERE session_id = of_session;
        state := coalesce(state, '{}') || jsonb_build_object('discoveries', coalesce(state->'discoveries', '[]')
            || jsonb_build_array(format('Note from %s, who had taken over: %s', known.taken_by, left(words, 500))));
        PERFORM agent.keep_checkpoint(of_session, state);
    END IF;
    PERFORM agent.decide(a.task_id, a.call_id, 'answered', coalesce(words, 'The session is yours again.'), NULL)
    FROM agent.approvals a WHERE a.session_id = of_session AND a.decision IS NULL AND a.tool = 'hand_over';
END $$;

-- Ends a task before its end: at once when it has not begun, before its next step when it runs.
CREATE FUNCTION agent.cancel(task text, why text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    known  agent.tasks%ROWTYPE;
    status text;
BEGIN
    SELECT s.status INTO status FROM dbos.workflow_status s WHERE s.workflow_uuid = task FOR NO KEY UPDATE;
    SELECT * INTO known FROM agent.tasks WHERE task_id = task FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no task %', quote_literal(task) USING ERRCODE = 'PD404';
    ELSIF known.outcome = 'cancelled' OR known.control IS NOT NULL AND known.outcome IS NULL THEN
        RETURN;
    ELSIF known.outcome IS NULL AND status = 'PENDING' THEN
        UPDATE agent.tasks SET control = 'cancel', error = why WHERE task_id = task;
        PERFORM agent.append_event(known.session_id, task, 'task.stopping', '{}');
        RETURN;
    ELSIF known.outcome IS NOT NULL AND known.outcome NOT IN ('waiting', 'dead')
          OR EXISTS (SELECT 1 FROM agent.tasks t WHERE t.continues = task) THEN
        RAISE EXCEPTION 'task % has ended', quote_literal(task) USING ERRCODE = 'PD409';
    END IF;
    UPDATE agent.tasks SET outcome = 'cancelled', error = coalesce(why, 'cancelled'), finished_at = clock_timestamp()
    WHERE task_id = task;
    UPDATE agent.approvals SET decision = 'expired', note = 'the task was cancelled', decided_at = clock_timestamp()
    WHERE task_id = task AND decision IS NULL;
    UPDATE dbos.workflow_status SET status = 'CANCELLED', owner_xid = NULL WHERE workflow_uuid = task
      AND dbos.workflow_status.status <> 'SUCCESS';
    PERFORM agent.append_event(known.session_id, task, 'task.cancelled', jsonb_strip_nulls(jsonb_build_object('reason', why)));
    PERFORM agent.place_session(known.session_id);
END $$;

-- Effects that a session began after a place in its journal: they happened outside, and nothing here undoes them.
CREATE FUNCTION agent.effects_after(of_session text, at_seq bigint)
RETURNS TABLE (seq bigint, tool text, arguments jsonb, idempotency_key text, state text, at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT j.seq, j.data->>'tool', j.data->'arguments', j.data->>'idempotency_key', e.state, j.at
    FROM agent.journal j LEFT JOIN agent.effects e ON e.idempotency_key = j.data->>'idempotency_key'
    WHERE j.session_id = of_session AND j.seq > at_seq AND j.kind = 'tool.started' ORDER BY j.seq
$$;

-- Errors unless the place is one of the session's own journal.
CREATE FUNCTION agent.check_place(known agent.sessions, at_seq bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF at_seq IS NULL OR at_seq < 0 OR at_seq > known.journal_seq THEN
        RAISE EXCEPTION 'session % has places 0 to % in its journal, not %', quote_literal(known.session_id),
            known.journal_seq, coalesce(at_seq::text, 'none') USING ERRCODE = 'PD400';
    END IF;
END $$;

-- A session's past up to a place, as the past of the same or of another session.
CREATE FUNCTION agent.inherit(heir text, of_session text, at_seq bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    past jsonb;
BEGIN
    SELECT coalesce(jsonb_agg(jsonb_build_object('s', p.session_id, 'a', p.after,
            't', CASE WHEN p.session_id = of_session THEN least(p.through, at_seq) ELSE p.through END)), '[]')
    INTO past FROM agent.past(of_session) p
    WHERE p.session_id <> of_session OR p.after < at_seq;
    DELETE FROM agent.lineage WHERE session_id = heir;
    INSERT INTO agent.lineage (session_id, part, of_session, after, through)
    SELECT heir, r.ordinality, r.value->>'s', (r.value->>'a')::bigint, (r.value->>'t')::bigint
    FROM jsonb_array_elements(past) WITH ORDINALITY r;
    INSERT INTO agent.lineage (session_id, part, of_session, after)
    SELECT heir, jsonb_array_length(past) + 1, heir, s.journal_seq FROM agent.sessions s WHERE s.session_id = heir;
    DELETE FROM agent.checkpoints WHERE session_id = heir;
    INSERT INTO agent.checkpoints (session_id, document)
    SELECT heir, v.document FROM agent.past(heir) p JOIN agent.checkpoint_versions v ON v.session_id = p.session_id
      AND v.seq > p.after AND (p.through IS NULL OR v.seq <= p.through)
    ORDER BY p.session_id = heir DESC, v.seq DESC LIMIT 1;
END $$;

-- A new session with another one's past up to a place, shared and not copied; from there it goes its own way.
CREATE FUNCTION agent.fork(of_session text, at_seq bigint, new_session text, new_title text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    known agent.sessions%ROWTYPE := agent.hold_session(of_session);
    heir  text := coalesce(new_session, gen_random_uuid()::text);
    place bigint := coalesce(at_seq, known.journal_seq);
BEGIN
    PERFORM agent.check_place(known, place);
    IF heir = '' OR length(heir) > 200 OR heir ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'a session id has 1 to 200 characters and no control characters' USING ERRCODE = 'PD400';
    END IF;
    INSERT INTO agent.sessions (session_id, agent, user_id, title, parent_session_id, context_window)
    VALUES (heir, known.agent, known.user_id, coalesce(new_title, left('Fork of ' || known.title, 80)), of_session,
        known.context_window) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is already a session %', quote_literal(heir) USING ERRCODE = 'PD409';
    END IF;
    PERFORM agent.inherit(heir, of_session, place);
    UPDATE agent.sessions s SET messages = coalesce((SELECT max(m.position) FROM agent.past(heir) p JOIN agent.messages m
        ON m.session_id = p.session_id AND m.seq > p.after AND (p.through IS NULL OR m.seq <= p.through)), 0)
    WHERE s.session_id = heir;
    PERFORM agent.append_event(heir, NULL, 'session.forked', jsonb_build_object('from', of_session, 'at', place));
    PERFORM agent.append_event(of_session, NULL, 'session.branched', jsonb_build_object('to', heir, 'at', place));
    RETURN heir;
END $$;

-- Moves a session back to a place. What is undone stays in the journal; what was queued is cancelled.
CREATE FUNCTION agent.rewind(of_session text, to_seq bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    known agent.sessions%ROWTYPE := agent.hold_session(of_session);
BEGIN
    PERFORM agent.check_place(known, to_seq);
    IF EXISTS (SELECT 1 FROM agent.tasks t JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
               WHERE t.session_id = of_session AND s.status = 'PENDING' AND t.outcome IS NULL) THEN
        RAISE EXCEPTION 'a task of session % is running: wait for it, pause or cancel it', quote_literal(of_session)
            USING ERRCODE = 'PD409';
    END IF;
    PERFORM agent.cancel(t.task_id, 'the session was rewound')
    FROM agent.tasks t JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
    WHERE t.session_id = of_session AND (s.status IN ('ENQUEUED', 'DELAYED') OR EXISTS (
        SELECT 1 FROM agent.approvals a WHERE a.task_id = t.task_id AND a.decision IS NULL));
    PERFORM agent.inherit(of_session, of_session, to_seq);
    RETURN agent.append_event(of_session, NULL, 'session.rewound', jsonb_build_object('to', to_seq));
END $$;

-- A session and everything that belongs to it is gone, also from DBOS's tables.
CREATE FUNCTION agent.delete_session(of_session text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    known agent.sessions%ROWTYPE := agent.hold_session(of_session);
    gone  text[];
BEGIN
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

-- Sessions that nobody has touched for so long are closed.
CREATE FUNCTION agent.expire_sessions(seconds double precision) RETURNS SETOF text
LANGUAGE sql AS $$
    SELECT s.session_id FROM agent.session_status s, LATERAL agent.set_mode(s.session_id, 'closed', NULL)
    WHERE s.state = 'idle' AND s.last_active_at < clock_timestamp() - make_interval(secs => seconds)
$$;

-- Everything of a session as one document, its shared past included.
CREATE FUNCTION agent.export_session(of_session text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('perdure', 1,
        'session', jsonb_build_object('session_id', s.session_id, 'agent', s.agent, 'user_id', s.user_id, 'title', s.title,
            'created_at', s.created_at),
        'checkpoint', (SELECT c.document FROM agent.checkpoints c WHERE c.session_id = of_session),
        'messages', coalesce((SELECT jsonb_agg(jsonb_build_object('position', m.position, 'task_id', m.task_id,
                'message', m.message) ORDER BY m.position)
            FROM agent.past(of_session) p JOIN agent.messages m ON m.session_id = p.session_id AND m.seq > p.after
              AND (p.through IS NULL OR m.seq <= p.through)), '[]'),
        'tasks', coalesce((SELECT jsonb_agg(to_jsonb(t) - 'idempotency_key' - 'worker_id' ORDER BY t.accepted_at)
            FROM agent.tasks t WHERE t.outcome IS NOT NULL AND t.task_id IN (
                SELECT m.task_id FROM agent.past(of_session) p JOIN agent.messages m ON m.session_id = p.session_id
                  AND m.seq > p.after AND (p.through IS NULL OR m.seq <= p.through))), '[]'),
        'compaction', agent.last_compaction(of_session),
        'journal', coalesce((SELECT jsonb_agg(jsonb_build_object('seq', j.seq, 'task_id', j.task_id, 'kind', j.kind,
                'data', j.data, 'at', j.at) ORDER BY j.seq) FROM agent.journal j WHERE j.session_id = of_session), '[]'),
        'corrections', coalesce((SELECT jsonb_agg(n.correction ORDER BY n.notice_id) FROM agent.notices n
            WHERE n.session_id = of_session AND n.correction IS NOT NULL), '[]'))
    FROM agent.sessions s WHERE s.session_id = of_session
$$;

-- A session from a document: idle, with its conversation, its checkpoint and its journal. Its tasks get new ids.
CREATE FUNCTION agent.import_session(document jsonb, new_session text, new_user text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    heir text := coalesce(new_session, document->'session'->>'session_id');
    ids  jsonb;
    last bigint;
BEGIN
    IF document->>'perdure' IS DISTINCT FROM '1' OR jsonb_typeof(document->'messages') IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'this is no exported session' USING ERRCODE = 'PD400';
    ELSIF heir IS NULL OR heir = '' OR length(heir) > 200 OR heir ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'a session id has 1 to 200 characters and no control characters' USING ERRCODE = 'PD400';
    END IF;
    SELECT coalesce(max((j->>'seq')::bigint), 0) INTO last FROM jsonb_array_elements(document->'journal') j;
    INSERT INTO agent.sessions (session_id, agent, user_id, title, journal_seq, messages, task_seq)
    VALUES (heir, document->'session'->>'agent', new_user, left(document->'session'->>'title', 200), last,
        (SELECT coalesce(max((m->>'position')::integer), 0) FROM jsonb_array_elements(document->'messages') m),
        jsonb_array_length(document->'tasks')) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is already a session %', quote_literal(heir) USING ERRCODE = 'PD409';
    END IF;
    SELECT coalesce(jsonb_object_agg(t->>'task_id', gen_random_uuid()::text), '{}') INTO ids
    FROM jsonb_array_elements(document->'tasks') t;
    INSERT INTO agent.tasks (task_id, session_id, agent, user_id, seq, kind, continues, input, outcome, output, error,
        accepted_at, started_at, finished_at)
    SELECT ids->>(t.value->>'task_id'), heir, t.value->>'agent', new_user, t.ordinality,
        CASE WHEN ids ? (t.value->>'continues') THEN t.value->>'kind' ELSE 'input' END, ids->>(t.value->>'continues'),
        t.value->>'input', CASE t.value->>'outcome' WHEN 'waiting' THEN 'cancelled' ELSE t.value->>'outcome' END,
        t.value->'output', t.value->>'error', (t.value->>'accepted_at')::timestamptz, (t.value->>'started_at')::timestamptz,
        (t.value->>'finished_at')::timestamptz
    FROM jsonb_array_elements(document->'tasks') WITH ORDINALITY t;
    INSERT INTO agent.messages (session_id, position, task_id, message, seq)
    SELECT heir, (m->>'position')::integer, ids->>(m->>'task_id'), m->'message', 1
    FROM jsonb_array_elements(document->'messages') m;
    INSERT INTO agent.journal (session_id, seq, task_id, kind, data, at)
    SELECT heir, (j->>'seq')::bigint, coalesce(ids->>(j->>'task_id'), j->>'task_id'), j->>'kind', j->'data',
        (j->>'at')::timestamptz FROM jsonb_array_elements(document->'journal') j;
    INSERT INTO agent.compactions (session_id, through, after, task_id, tokens_before, tokens_after, strategy, summary,
        exam_score, seq)
    SELECT heir, (document->'compaction'->>'through')::integer, 0, 'imported', 0, 0, 'imported',
        document->'compaction'->>'summary', 1, 1 WHERE document->'compaction' ? 'through';
    IF document->'checkpoint' ? 'goal' THEN PERFORM agent.keep_checkpoint(heir, document->'checkpoint'); END IF;
    IF document ? 'files' THEN
        PERFORM pg_advisory_xact_lock_shared(hashtext('perdure.blobs'));
        INSERT INTO agent.blobs (sha256, size, data)
        SELECT DISTINCT ON (1) decode(f->>'sha256', 'hex'), (f->>'size')::integer, decode(f->>'data', 'base64')
        FROM jsonb_array_elements(document->'files') f ON CONFLICT DO NOTHING;
        INSERT INTO agent.files (session_id, path, seq, sha256, size)
        SELECT heir, f->>'path', greatest(last, 1), decode(f->>'sha256', 'hex'), (f->>'size')::integer
        FROM jsonb_array_elements(document->'files') f;
    END IF;
    INSERT INTO agent.notices (session_id, kind, body, acknowledged_at, correction)
    SELECT heir, 'planned', 'Imported with the session.', clock_timestamp(), c
    FROM jsonb_array_elements_text(coalesce(document->'corrections', '[]')) c;
    PERFORM agent.append_event(heir, NULL, 'session.imported',
        jsonb_build_object('from', document->'session'->>'session_id', 'messages', jsonb_array_length(document->'messages')));
    RETURN heir;
END $$;
