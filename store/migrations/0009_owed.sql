-- Decisions that outlive the task they were made for, and what else sessions lacked.

SET LOCAL check_function_bodies = off;

ALTER TABLE agent.approvals ADD COLUMN honoured_by text, ADD COLUMN honoured_as text;

-- A decision that outlived the task it was made for: by which later task it was used, and for which of its calls.
CREATE INDEX approvals_honoured ON agent.approvals (honoured_by) WHERE honoured_by IS NOT NULL;

-- Whoever runs a task of the session is told that something is asked of it (see agent.wanted).
CREATE FUNCTION agent.call_worker() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('perdure_wish', NEW.session_id);
    RETURN NULL;
END $$;

CREATE TRIGGER wish AFTER UPDATE OF mode ON agent.sessions
    FOR EACH ROW WHEN (NEW.mode = 'paused') EXECUTE FUNCTION agent.call_worker();

CREATE TRIGGER wish AFTER UPDATE OF control ON agent.tasks
    FOR EACH ROW WHEN (NEW.control IS NOT NULL) EXECUTE FUNCTION agent.call_worker();

-- What came with a document is not verified, for Postgres cannot unpack it: readers check the hash, and the first task
-- that saves the same content puts its own there.
ALTER TABLE agent.blobs ADD COLUMN is_verified boolean NOT NULL DEFAULT true;

-- What people decided for a task that was replaced before it used it, as the task now in its line may: an approval
-- whose call never began, a denial or an answer. The same at every opening of the task.
CREATE FUNCTION agent.owed(task text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE line AS (
        SELECT t.task_id, t.continues, t.kind, false AS is_replaced FROM agent.tasks t WHERE t.task_id = task
        UNION ALL
        SELECT p.task_id, p.continues, p.kind, l.kind = 'replacement'
        FROM line l JOIN agent.tasks p ON p.task_id = l.continues)
    SELECT coalesce(jsonb_agg(jsonb_build_object('asked_by', a.task_id, 'call_id', a.call_id, 'tool', a.tool,
            'decision', a.decision, 'note', a.note, 'kind', a.kind, 'arguments', a.arguments, 'edited', a.edited,
            'idempotency_key', a.idempotency_key, 'honoured_as', a.honoured_as) ORDER BY a.requested_at, a.call_id), '[]')
    FROM line l JOIN agent.approvals a ON a.task_id = l.continues
    WHERE l.kind = 'continuation' AND l.is_replaced AND a.decision IS NOT NULL
      AND (a.honoured_by IS NULL OR a.honoured_by = task)
      AND NOT EXISTS (SELECT 1 FROM agent.effects e
                      WHERE e.idempotency_key = a.idempotency_key AND e.task_id NOT IN (a.task_id, task))
      AND NOT EXISTS (SELECT 1 FROM line b JOIN dbos.operation_outputs o ON o.workflow_uuid = b.task_id
                      WHERE b.task_id NOT IN (a.task_id, task) AND o.function_name = 'tool.' || a.tool
                        AND agent.as_json(o.output)->>'idempotency_key' = a.idempotency_key)
$$;

-- A decision made for an earlier task is used by a call of this one, and by no other.
CREATE FUNCTION agent.honour(task text, owner text, asked_by text, asked_call text, by_call text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    used agent.approvals%ROWTYPE;
BEGIN
    PERFORM agent.hold(task, owner);
    UPDATE agent.approvals a SET honoured_by = task, honoured_as = by_call
    WHERE a.task_id = asked_by AND a.call_id = asked_call AND a.honoured_by IS NULL RETURNING * INTO used;
    IF NOT FOUND THEN RETURN; END IF;
    PERFORM agent.append_event(used.session_id, task, 'approval.honoured', jsonb_build_object('call_id', by_call,
        'tool', used.tool, 'decision', used.decision, 'asked_by', asked_by, 'asked_call', asked_call));
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
        'owed', CASE WHEN opened.continues IS NULL THEN '[]' ELSE agent.owed(task) END,
        'compaction', agent.last_compaction(opened.session_id), 'control', opened.control,
        'steers', agent.steers_of(task));
END $$;

-- Accepts a task in the place of one that cannot go on, with the same words or others. It knows what that one did.
CREATE OR REPLACE FUNCTION agent.replace_task(task text, words text, why text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    old       agent.tasks%ROWTYPE;
    following text;
BEGIN
    UPDATE agent.tasks SET outcome = 'cancelled', finished_at = coalesce(finished_at, clock_timestamp()), error = why
    WHERE task_id = task RETURNING * INTO old;
    UPDATE dbos.workflow_status SET status = 'CANCELLED', owner_xid = NULL WHERE workflow_uuid = task;
    UPDATE agent.approvals SET honoured_by = NULL, honoured_as = NULL WHERE honoured_by = task;
    INSERT INTO agent.tasks (task_id, session_id, agent, user_id, seq, kind, continues, input)
    VALUES (gen_random_uuid()::text, old.session_id, old.agent, old.user_id, old.seq, 'replacement', task,
        coalesce(words, old.input))
    RETURNING task_id INTO following;
    RETURN following;
END $$;

-- A file of the task's session has this content, or with none is removed. Says at which event, if that is a change.
-- Locks: the DBOS row, then the session, then the contents, which agent.sweep_blobs takes last too.
CREATE OR REPLACE FUNCTION agent.save_file(
    task text, owner text, path text, sha256 bytea, size integer, data bytea, key text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    of_session text;
    place      bigint;
BEGIN
    PERFORM agent.hold(task, owner);
    SELECT t.session_id INTO STRICT of_session FROM agent.tasks t WHERE t.task_id = task;
    IF (SELECT m.sha256 FROM agent.manifest(of_session) m WHERE m.path = save_file.path)
       IS NOT DISTINCT FROM save_file.sha256 THEN
        RETURN NULL;
    END IF;
    place := agent.append_event(of_session, task, 'workspace.saved', jsonb_build_object(
        'path', save_file.path, 'size', coalesce(save_file.size, 0), 'sha256', encode(save_file.sha256, 'hex'),
        'removed', save_file.sha256 IS NULL));
    IF save_file.sha256 IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock_shared(hashtext('perdure.blobs'));
        INSERT INTO agent.blobs AS b VALUES (save_file.sha256, save_file.size, save_file.data)
        ON CONFLICT ON CONSTRAINT blobs_pkey DO UPDATE SET size = excluded.size, data = excluded.data, is_verified = true
        WHERE NOT b.is_verified;
    END IF;
    INSERT INTO agent.files VALUES (of_session, save_file.path, place, save_file.sha256, coalesce(save_file.size, 0),
        task, save_file.key);
    RETURN place;
END $$;

-- A session from a document: idle, with its conversation, its checkpoint and its journal. Its tasks get new ids.
-- Whether files are what they say is checked by `perdure import` and the client before, and else when they are restored.
CREATE OR REPLACE FUNCTION agent.import_session(document jsonb, new_session text, new_user text) RETURNS text
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
        INSERT INTO agent.blobs (sha256, size, data, is_verified)
        SELECT DISTINCT ON (1) decode(f->>'sha256', 'hex'), (f->>'size')::integer, decode(f->>'data', 'base64'), false
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

-- A schedule and its row at DBOS's scheduler exist, or nothing was written. `pattern` is what DBOS is to keep time by;
-- as it makes up what came before it looked, an occurrence in the seconds until then is not lost. The name of one whose
-- only moment is over, and owes no run, can be used again.
CREATE OR REPLACE FUNCTION agent.schedule(new_name text, for_agent text, new_input text, for_session text, for_user text,
    new_cron text, new_at timestamptz, zone text, if_missed text, pattern text, first_at timestamptz,
    max_bytes integer DEFAULT 1048576) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    owner agent.sessions%ROWTYPE;
BEGIN
    IF new_name IS NULL OR new_name !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$' THEN
        RAISE EXCEPTION 'the name of a schedule has 1 to 100 letters, digits, dots, dashes and underscores'
            USING ERRCODE = 'PD400';
    ELSIF if_missed NOT IN ('skip', 'once') THEN
        RAISE EXCEPTION 'missed is %; allowed are skip and once', quote_literal(if_missed) USING ERRCODE = 'PD400';
    ELSIF new_input IS NULL OR btrim(new_input, E' \t\r\n') = '' THEN
        RAISE EXCEPTION 'the input is empty' USING ERRCODE = 'PD400';
    ELSIF octet_length(new_input) > max_bytes THEN
        RAISE EXCEPTION 'the input has % bytes; at most % are accepted', octet_length(new_input), max_bytes
            USING ERRCODE = 'PD413';
    ELSIF for_session = '' OR length(for_session) > 200 OR for_session ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'a session id has 1 to 200 characters and no control characters' USING ERRCODE = 'PD400';
    ELSIF length(for_user) > 200 THEN
        RAISE EXCEPTION 'a user id has at most 200 characters' USING ERRCODE = 'PD400';
    ELSIF new_at <= clock_timestamp() THEN
        RAISE EXCEPTION '% is in the past', to_char(new_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
            USING ERRCODE = 'PD400';
    ELSIF NOT EXISTS (SELECT 1 FROM agent.agents a WHERE a.name = for_agent) THEN
        RAISE EXCEPTION 'there is no agent named %; registered are: %', quote_literal(coalesce(for_agent, '')),
            coalesce((SELECT string_agg(a.name, ', ' ORDER BY a.name) FROM agent.agents a), 'none yet, start a worker first')
            USING ERRCODE = 'PD404';
    END IF;
    SELECT s.* INTO owner FROM agent.sessions s WHERE s.session_id = for_session;
    IF FOUND THEN PERFORM agent.check_owner(owner, for_agent, for_user); END IF;

    PERFORM agent.unschedule(k.name) FROM (
        SELECT k.name, k.at FROM agent.schedules k
        WHERE k.name = new_name AND k.at IS NOT NULL AND k.next_at IS NULL FOR UPDATE) k
    WHERE NOT EXISTS (SELECT 1 FROM dbos.workflow_status w
        WHERE w.workflow_uuid = 'owed-' || k.name || '-' || agent.as_iso(k.at)
          AND w.status IN ('PENDING', 'ENQUEUED', 'DELAYED'));
    INSERT INTO agent.schedules (name, agent, session_id, user_id, input, cron, at, timezone, missed, next_at)
    VALUES (new_name, for_agent, for_session, for_user, new_input, new_cron, new_at, zone, if_missed, first_at)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is already a schedule %', quote_literal(new_name) USING ERRCODE = 'PD409';
    END IF;
    INSERT INTO dbos.workflow_schedules (schedule_id, schedule_name, workflow_name, schedule, context, last_fired_at,
        automatic_backfill, cron_timezone, queue_name, application_name)
    VALUES (gen_random_uuid()::text, 'perdure:' || new_name, 'fire_schedule', pattern, to_json(new_name)::text,
        agent.as_iso(clock_timestamp()), true, CASE WHEN new_cron IS NULL THEN 'UTC' ELSE zone END, 'perdure_care', 'perdure');
END $$;
