-- Perdure's schema, whole. Read this page and you have read the system.
--
-- A *session* is one line of work between an agent and a user. A *task* is one input to it and exactly
-- one DBOS workflow with the same id. Accepting a task inserts into agent.tasks; when that transaction
-- commits, the deferred trigger agent.accept_task gives the task its place in the session, journals it
-- and writes the DBOS row that makes it run. So everything about an accepted task exists, or nothing does,
-- and the order of acceptance is the order of commit: a caller's long transaction holds up nobody.
--
-- A worker that takes a task calls agent.open_task, runs the agent, and calls agent.commit_task. In
-- between, DBOS records one row per model request and tool call in dbos.operation_outputs. The trigger
-- agent.journal_step turns each such row into a journal event, in the transaction that records it, and
-- closes the effect it belongs to. An effect (a tool call that changes the world) is opened before it
-- runs by agent.start_effect; one that is open when its task moves to another worker is *in doubt*.
--
-- agent.hold is the fence: every write on behalf of a running task first locks the DBOS row and checks
-- that this execution still owns it. A worker that was taken for dead can therefore record nothing.
-- Locks are taken in one order: the DBOS row, then the session.
--
-- Dead workers are found by agent.workers.beat_at, and their tasks are returned to the queue by
-- agent.adopt_tasks, which is also where crashes are counted and the session's user is told (agent.notices).
--
-- What a model is sent is not the whole history: messages up to the last row of agent.compactions are
-- represented by its summary, and agent.restored gives the state of the work (agent.checkpoints), corrections
-- and what waits. agent.handoffs keeps the documents that one context leaves for the next.
--
-- A task that nobody runs is where agent.place_task puts it: on its queue, apart as a suspect, or waiting, as
-- agent.runs_after says. Crashes make suspects (agent.suspect), a death alone makes a dead letter (agent.convict,
-- agent.bury), too many open a breaker (agent.trip), and people are told once (agent.raise_alert).
--
-- A session's past is agent.past: its own journal, or after a fork or a rewind the segments of agent.lineage. Messages,
-- compactions, checkpoints and files carry the journal number they belong to. Files are contents in agent.blobs and
-- changes in agent.files; what runs by the clock is in agent.schedules. Who may ask over HTTP is in agent.keys.
--
-- What a model's answer cost is part of its step, and agent.spend adds it up in the transaction that records the step:
-- in agent.spent by task, in agent.tallies by session and user. Before a request, agent.restored compares the latter with
-- agent.budgets; agent.stop_for_budget then has the session wait (sessions.budget_until), agent.release_budgets go on.

-- Functions name each other in any order.
SET LOCAL check_function_bodies = off;

CREATE SCHEMA IF NOT EXISTS agent;

CREATE TABLE agent.agents (
    name          text PRIMARY KEY,
    description   text,
    model         text,
    tools         jsonb NOT NULL DEFAULT '[]',
    registered_at timestamptz NOT NULL DEFAULT now(),
    context_window integer
);

CREATE TABLE agent.sessions (
    session_id        text PRIMARY KEY CHECK (session_id <> '' AND length(session_id) <= 200),
    agent             text NOT NULL,
    user_id           text CHECK (length(user_id) <= 200),
    title             text,
    mode              text NOT NULL DEFAULT 'open' CHECK (mode IN ('open', 'paused', 'quarantined', 'closed')),
    parent_session_id text,
    journal_seq       bigint NOT NULL DEFAULT 0,
    task_seq          integer NOT NULL DEFAULT 0,
    messages          integer NOT NULL DEFAULT 0,
    context_tokens    integer NOT NULL DEFAULT 0,
    context_window    integer,
    restarts          integer NOT NULL DEFAULT 0,
    compactions       integer NOT NULL DEFAULT 0,
    created_at        timestamptz NOT NULL DEFAULT now(),
    last_active_at    timestamptz NOT NULL DEFAULT now(),
    coherence         real,
    coherence_note    text,
    waits_until timestamptz,
    taken_by text,
    closed_at timestamptz,
    budget_until timestamptz
) WITH (fillfactor = 70);

CREATE INDEX sessions_by_user ON agent.sessions (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX sessions_over_budget ON agent.sessions (session_id) WHERE budget_until IS NOT NULL;

CREATE TABLE agent.tasks (
    task_id         text PRIMARY KEY CHECK (task_id <> '' AND length(task_id) <= 200),
    session_id      text NOT NULL REFERENCES agent.sessions ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    agent           text NOT NULL,
    user_id         text,
    seq             integer,
    kind            text NOT NULL DEFAULT 'input' CHECK (kind IN ('input', 'continuation', 'replacement', 'person')),
    continues       text,
    input           text NOT NULL,
    idempotency_key text CHECK (length(idempotency_key) <= 500),
    history_through integer,
    outcome         text CHECK (outcome IN ('waiting', 'done', 'failed', 'cancelled', 'dead')),
    output          jsonb,
    error           text,
    crashes         integer NOT NULL DEFAULT 0,
    worker_id       text,
    accepted_at     timestamptz NOT NULL DEFAULT now(),
    started_at      timestamptz,
    finished_at     timestamptz,
    hangs integer NOT NULL DEFAULT 0,
    is_isolated boolean NOT NULL DEFAULT false,
    evidence jsonb,
    held_by text,
    control text CHECK (control IN ('cancel', 'interrupt')),
    traceparent text
) WITH (fillfactor = 80);

CREATE UNIQUE INDEX tasks_by_idempotency_key ON agent.tasks (coalesce(user_id, ''), idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX tasks_by_session ON agent.tasks (session_id, seq);
CREATE INDEX tasks_by_time ON agent.tasks (accepted_at);
CREATE UNIQUE INDEX tasks_by_continuation ON agent.tasks (continues) WHERE continues IS NOT NULL;

-- A session runs one task at a time, also while one of them runs apart.
CREATE INDEX tasks_isolated ON agent.tasks (session_id) WHERE is_isolated AND outcome IS NULL;

CREATE INDEX tasks_dead ON agent.tasks (task_id) WHERE outcome = 'dead';

-- The conversation, one row per model message, only ever appended.
CREATE TABLE agent.messages (
    session_id text NOT NULL REFERENCES agent.sessions ON DELETE CASCADE,
    position   integer NOT NULL,
    task_id    text NOT NULL,
    message    jsonb NOT NULL,
    seq bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (session_id, position)
);

CREATE TABLE agent.journal (
    session_id text NOT NULL REFERENCES agent.sessions ON DELETE CASCADE,
    seq        bigint NOT NULL,
    task_id    text,
    kind       text NOT NULL,
    data       jsonb NOT NULL DEFAULT '{}',
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (session_id, seq)
);

CREATE INDEX journal_by_time ON agent.journal (at);

-- What a model has said so far of an answer that is not recorded yet, in pieces. An attempt is one request; the next one
-- replaces it, and the record of the step does away with it. Nothing depends on it, so a crash of Postgres may empty it.
CREATE UNLOGGED TABLE agent.deltas (
    task_id    text NOT NULL,
    attempt    text NOT NULL,
    n          integer NOT NULL,
    session_id text NOT NULL REFERENCES agent.sessions ON DELETE CASCADE,
    data       jsonb NOT NULL,
    PRIMARY KEY (task_id, attempt, n)
);

CREATE INDEX deltas_by_session ON agent.deltas (session_id);

-- The ledger of effects. `owner` is the DBOS ownership token of the execution that started it.
CREATE TABLE agent.effects (
    idempotency_key text PRIMARY KEY,
    session_id      text NOT NULL REFERENCES agent.sessions ON DELETE CASCADE,
    task_id         text NOT NULL,
    call_id         text NOT NULL,
    tool            text NOT NULL,
    arguments       jsonb NOT NULL,
    policy          text NOT NULL CHECK (policy IN ('retry', 'verify', 'ask', 'report')),
    state           text NOT NULL DEFAULT 'started' CHECK (state IN ('started', 'finished', 'unknown', 'settled')),
    owner           text,
    worker_id       text,
    attempts        integer NOT NULL DEFAULT 1,
    started_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at     timestamptz
);

CREATE INDEX effects_by_call ON agent.effects (task_id, call_id);
CREATE INDEX effects_open ON agent.effects (session_id) WHERE state IN ('started', 'unknown');

CREATE TABLE agent.approvals (
    task_id         text NOT NULL REFERENCES agent.tasks ON DELETE CASCADE,
    call_id         text NOT NULL,
    session_id      text NOT NULL,
    tool            text NOT NULL,
    arguments       jsonb NOT NULL,
    reason          text,
    idempotency_key text NOT NULL,
    requested_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at      timestamptz,
    decision        text CHECK (decision IN ('approved', 'denied', 'answered', 'expired')),
    note            text,
    decided_at      timestamptz,
    kind text NOT NULL DEFAULT 'approval' CHECK (kind IN ('approval', 'question')),
    edited jsonb,
    honoured_by text,
    honoured_as text,
    PRIMARY KEY (task_id, call_id)
);

-- A decision that outlived the task it was made for: by which later task it was used, and for which of its calls.
CREATE INDEX approvals_honoured ON agent.approvals (honoured_by) WHERE honoured_by IS NOT NULL;
CREATE INDEX approvals_open ON agent.approvals (task_id) WHERE decision IS NULL;

CREATE TABLE agent.workers (
    worker_id    text PRIMARY KEY,
    host         text NOT NULL,
    pid          integer NOT NULL,
    process      text NOT NULL,
    version      text NOT NULL,
    agents       text[] NOT NULL DEFAULT '{}',
    state        text NOT NULL DEFAULT 'alive' CHECK (state IN ('alive', 'draining', 'stopped', 'dead')),
    beat_seconds double precision NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    role text NOT NULL DEFAULT 'worker' CHECK (role IN ('worker', 'isolated')),
    trial text,
    ended text,
    hung boolean NOT NULL DEFAULT false
);

CREATE INDEX workers_by_state ON agent.workers (state);

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
    kind            text NOT NULL CHECK (kind IN ('crash', 'planned', 'overflow', 'hang', 'incoherent', 'dead', 'budget')),
    body            text NOT NULL,
    times           integer NOT NULL DEFAULT 1,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    first_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    acknowledged_at timestamptz,
    correction      text CHECK (length(correction) <= 4000),
    delivered_at timestamptz,
    delivery_error text
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
    summary       text,
    exam_score    real,
    note          text,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    seq bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (session_id, through, strategy)
);

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

-- Contents, compressed with zstd. `size` is that of the content itself. What came with a document is not verified, for
-- Postgres cannot unpack it: readers check the hash, and the first task that saves the same content puts its own there.
CREATE TABLE agent.blobs (
    sha256 bytea PRIMARY KEY CHECK (length(sha256) = 32),
    size   integer NOT NULL,
    data   bytea NOT NULL,
    is_verified boolean NOT NULL DEFAULT true
);

-- One row per change of a file, only ever appended; `seq` is that of its event in the journal, and no content means
-- that the file was removed. `key` is the call that made the change, by which its repetition is known.
CREATE TABLE agent.files (
    session_id text NOT NULL REFERENCES agent.sessions ON DELETE CASCADE,
    path       text NOT NULL CHECK (path <> '' AND length(path) <= 1000),
    seq        bigint NOT NULL,
    sha256     bytea REFERENCES agent.blobs,
    size       integer NOT NULL DEFAULT 0,
    task_id    text,
    key        text,
    PRIMARY KEY (session_id, path, seq)
);

CREATE INDEX files_by_content ON agent.files (sha256) WHERE sha256 IS NOT NULL;

-- `next_at` is the first occurrence that nobody has answered for yet; empty once a single moment is over.
CREATE TABLE agent.schedules (
    name         text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$'),
    agent        text NOT NULL,
    session_id   text,
    user_id      text,
    input        text NOT NULL,
    cron         text,
    at           timestamptz,
    timezone     text NOT NULL,
    missed       text NOT NULL CHECK (missed IN ('skip', 'once')),
    next_at      timestamptz,
    last_at      timestamptz,
    last_task_id text,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((cron IS NULL) <> (at IS NULL))
);

-- Once there is a key, even a revoked one, HTTP answers nobody without; forgetting the last one opens loopback again.
CREATE TABLE agent.keys (
    name         text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$'),
    hash         bytea NOT NULL UNIQUE CHECK (length(hash) = 32),
    user_id      text CHECK (user_id <> '' AND length(user_id) <= 200),
    is_read_only boolean NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_used_at timestamptz,
    revoked_at   timestamptz
);

-- A sign-in is worth what its key is worth, while that lasts. The key may be one of the environment's.
CREATE TABLE agent.sign_ins (
    hash       bytea PRIMARY KEY CHECK (length(hash) = 32),
    key_hash   bytea NOT NULL,
    expires_at timestamptz NOT NULL
);

-- What models were asked for and what that cost, by task and day. A price is that of the moment it was recorded at, and a
-- model whose price nobody knows has none. Sessions that are deleted leave their sums behind, without their names.
CREATE TABLE agent.spent (
    task_id            text NOT NULL,
    day                date NOT NULL,
    model              text NOT NULL,
    purpose            text NOT NULL,
    agent              text NOT NULL,
    user_id            text NOT NULL,
    session_id         text NOT NULL,
    requests           bigint NOT NULL,
    unpriced_requests  bigint NOT NULL,
    input_tokens       bigint NOT NULL,
    output_tokens      bigint NOT NULL,
    cache_read_tokens  bigint NOT NULL,
    cache_write_tokens bigint NOT NULL,
    cost_usd           numeric,
    PRIMARY KEY (task_id, day, model, purpose, agent, user_id)
);

CREATE INDEX spent_by_session ON agent.spent (session_id) WHERE session_id <> '';
CREATE INDEX spent_by_day ON agent.spent (day);

-- The same by session and by user, one row a day: what a budget is compared with, however long the history is.
CREATE TABLE agent.tallies (
    scope    text NOT NULL CHECK (scope IN ('session', 'user')),
    name     text NOT NULL,
    day      date NOT NULL,
    tokens   bigint NOT NULL,
    cost_usd numeric,
    PRIMARY KEY (scope, name, day)
) WITH (fillfactor = 70);

-- How much may be spent, per day (UTC) or in all. The empty name is for all that have no budget of their own.
CREATE TABLE agent.budgets (
    scope    text NOT NULL CHECK (scope IN ('session', 'user')),
    name     text NOT NULL CHECK (length(name) <= 200),
    period   text NOT NULL CHECK (period IN ('day', 'total')),
    cost_usd numeric CHECK (cost_usd >= 0 AND cost_usd < 'Infinity'),
    tokens   bigint CHECK (tokens >= 0),
    set_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (scope, name, period),
    CHECK (cost_usd IS NOT NULL OR tokens IS NOT NULL)
);

-- What DBOS stored, as jsonb when it is JSON and as a string when it is not.
CREATE FUNCTION agent.as_json(stored text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN stored::jsonb;
EXCEPTION WHEN others THEN
    RETURN to_jsonb(stored);
END $$;

CREATE FUNCTION agent.append_event(for_session text, for_task text, event text, facts jsonb) RETURNS bigint
LANGUAGE sql AS $$
    SELECT pg_notify('perdure', for_session);
    WITH place AS (
        UPDATE agent.sessions SET journal_seq = journal_seq + 1, last_active_at = clock_timestamp()
        WHERE session_id = for_session RETURNING journal_seq
    )
    INSERT INTO agent.journal (session_id, seq, task_id, kind, data)
    SELECT for_session, journal_seq, for_task, event, facts FROM place
    RETURNING seq
$$;

-- The fence. Errors with PD001 unless `owner` still owns the task; the row stays locked until commit.
CREATE FUNCTION agent.hold(task text, owner text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM dbos.workflow_status s
    WHERE s.workflow_uuid = task AND s.owner_xid = owner AND s.status = 'PENDING' FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'task % is no longer owned by this execution', task USING ERRCODE = 'PD001';
    END IF;
END $$;

-- Accepts one input: the same key gives the same task, and any refusal leaves nothing behind. While a task runs, the
-- input waits for its turn (queue), reaches that task before its next request (steer), or ends it (interrupt).
CREATE FUNCTION agent.enqueue(
    agent           text,
    input           text,
    session_id      text DEFAULT NULL,
    user_id         text DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    max_bytes       integer DEFAULT 1048576,
    when_busy       text DEFAULT 'queue',
    traceparent     text DEFAULT NULL
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

    INSERT INTO agent.tasks (task_id, session_id, agent, user_id, input, idempotency_key, seq, traceparent)
    VALUES (new_task, given_session, given_agent, given_user, enqueue.input, given_key, running.seq,
        substring(enqueue.traceparent FROM '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'))
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

-- Runs when the accepting transaction commits: place in the session, journal, DBOS row.
CREATE FUNCTION agent.accept_task() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    place integer;
    after timestamptz;
    trace text;
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
    trace := coalesce(NEW.traceparent, (SELECT t.traceparent FROM agent.tasks t WHERE t.task_id = NEW.continues));
    IF trace IS NOT NULL THEN  -- where DBOS looks for the trace that a workflow belongs to
        UPDATE dbos.workflow_status SET attributes = jsonb_build_object('dbos.otelContext',
            jsonb_build_object('traceparent', trace)) WHERE workflow_uuid = NEW.task_id;
        UPDATE agent.tasks SET traceparent = trace WHERE task_id = NEW.task_id AND traceparent IS NULL;
    END IF;
    after := agent.runs_after(NEW.task_id, NEW.session_id, NEW.agent);
    IF after > clock_timestamp() THEN PERFORM agent.place_task(NEW.task_id); END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER accept AFTER INSERT ON agent.tasks
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION agent.accept_task();

-- Begins or resumes the execution of a task; what it returns is the same every time. Returns nothing for a task that
-- is not where it belongs, as after `dbos workflow resume`: it goes back, to where its session is in order.
CREATE FUNCTION agent.open_task(task text, owner text, worker text) RETURNS jsonb
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
        DELETE FROM agent.deltas WHERE task_id = task;
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
        'steers', agent.steers_of(task),
        'waited_seconds', CASE WHEN NOT began THEN extract(epoch FROM opened.started_at - opened.accepted_at) END);
END $$;

-- Ends a task: messages appended, outcome set, questions asked. The first commit wins. Words that came too late for
-- it are a task of their own.
CREATE FUNCTION agent.commit_task(
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

-- Opens an effect before it runs. 'fresh' when it may run, 'in doubt' when an earlier start has no recorded end, and
-- 'pause', 'cancel' or 'interrupt' when it may not.
CREATE FUNCTION agent.start_effect(
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

-- Adds pieces of answers, of those executions alone that still own their tasks, and wakes whoever follows the sessions.
CREATE FUNCTION agent.tell(pieces jsonb) RETURNS void
LANGUAGE sql AS $$
    WITH told AS (
        SELECT p.* FROM jsonb_to_recordset(pieces)
            AS p (task_id text, owner text, attempt text, n integer, session_id text, data jsonb)
        JOIN dbos.workflow_status s
          ON s.workflow_uuid = p.task_id AND s.owner_xid = p.owner AND s.status = 'PENDING'),
    replaced AS (
        DELETE FROM agent.deltas d USING (SELECT DISTINCT task_id, attempt FROM told) t
        WHERE d.task_id = t.task_id AND d.attempt <> t.attempt),
    added AS (
        INSERT INTO agent.deltas (task_id, attempt, n, session_id, data)
        SELECT task_id, attempt, n, session_id, data FROM told ON CONFLICT DO NOTHING RETURNING session_id)
    SELECT pg_notify('perdure', session_id) FROM (SELECT DISTINCT session_id FROM added) a
$$;

-- Every recorded step becomes a journal event, a recorded tool call closes its effect, and a suspect that gets this
-- far is none any more.
CREATE FUNCTION agent.journal_step() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    of_session text;
    on_trial   boolean;
    record     jsonb;
    spent      jsonb;
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
        DELETE FROM agent.deltas WHERE task_id = NEW.workflow_uuid;
        spent := record #> '{v,metadata,perdure,spent}';
        PERFORM agent.append_event(of_session, NEW.workflow_uuid,
            CASE WHEN NEW.error IS NULL THEN 'model.responded' ELSE 'model.failed' END,
            jsonb_strip_nulls(jsonb_build_object('step', NEW.function_id, 'model', record->'v'->'model_name',
                'input_tokens', record->'v'->'usage'->'input_tokens',
                'output_tokens', record->'v'->'usage'->'output_tokens',
                'cache_read_tokens', record->'v'->'usage'->'cache_read_tokens',
                'cost_usd', (SELECT sum((i->>'cost_usd')::numeric) FROM jsonb_array_elements(spent) i),
                'error', record->'message', 'ms', took)));
        IF spent IS NOT NULL THEN PERFORM agent.spend(NEW.workflow_uuid, spent); END IF;
    END IF;
    IF on_trial THEN PERFORM agent.acquit(NEW.workflow_uuid); END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER perdure_journal AFTER INSERT ON dbos.operation_outputs
    FOR EACH ROW EXECUTE FUNCTION agent.journal_step();

-- Records a person's answer once; the last answer of a task accepts the task that continues it.
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

-- Declares silent or provably gone workers dead and frees what they ran, whoever left it. One adopter at a time.
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

-- A planned stop: what this worker still runs goes back to the queue, and no crash is counted.
CREATE FUNCTION agent.leave(me text) RETURNS SETOF text
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

-- Frees what this worker was given a while ago and does not run: claims whose answer got lost.
CREATE FUNCTION agent.free_lost(me text, active text[], seconds double precision) RETURNS SETOF text
LANGUAGE sql AS $$
    SELECT lost.workflow_uuid FROM (
        SELECT s.workflow_uuid FROM dbos.workflow_status s JOIN agent.tasks t ON t.task_id = s.workflow_uuid
        WHERE s.status = 'PENDING' AND s.executor_id = me AND NOT s.workflow_uuid = ANY (active)
          AND s.started_at_epoch_ms < (extract(epoch FROM clock_timestamp()) - seconds) * 1000
        FOR NO KEY UPDATE OF s) lost, LATERAL agent.place_task(lost.workflow_uuid)
$$;

-- An execution that cannot go on gives its task back.
CREATE FUNCTION agent.give_back(task text, owner text) RETURNS void
LANGUAGE sql AS $$
    SELECT agent.place_task(s.workflow_uuid) FROM dbos.workflow_status s
    WHERE s.workflow_uuid = task AND s.owner_xid = owner AND s.status = 'PENDING' FOR NO KEY UPDATE
$$;

CREATE VIEW agent.task_status AS
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
    t.hangs, t.is_isolated, t.evidence,
    (SELECT coalesce(sum(u.input_tokens + u.output_tokens), 0)::bigint FROM agent.spent u WHERE u.task_id = t.task_id) AS tokens,
    (SELECT sum(u.cost_usd) FROM agent.spent u WHERE u.task_id = t.task_id) AS cost_usd
FROM agent.tasks t LEFT JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id;

CREATE VIEW agent.step_log AS
SELECT o.workflow_uuid AS task_id, t.session_id, o.function_id AS step, o.function_name AS name,
    CASE WHEN o.function_name LIKE 'tool.%' THEN 'tool' WHEN o.function_name LIKE '%\_\_model.%' THEN 'model'
         ELSE split_part(o.function_name, '.', 1) END AS kind,
    CASE WHEN o.function_name LIKE 'tool.%' THEN r.record->'input'
         WHEN o.function_name LIKE '%\_\_model.%' THEN r.record->'v'->'metadata'->'perdure' END AS input,
    CASE WHEN o.function_name LIKE 'tool.%' THEN r.record->'output'
         WHEN r.record ? '$' THEN (r.record->'v') #- '{metadata,perdure}' ELSE r.record END AS output,
    CASE WHEN o.error IS NOT NULL THEN coalesce(agent.as_json(o.error)->>'message', o.error)
         WHEN o.function_name LIKE 'tool.%' AND r.record->>'outcome' <> 'returned' THEN r.record->>'note' END AS error,
    CASE WHEN o.function_name LIKE 'tool.%' THEN r.record->>'outcome' END AS outcome,
    to_timestamp(o.started_at_epoch_ms / 1000.0) AS started_at,
    to_timestamp(o.completed_at_epoch_ms / 1000.0) AS finished_at
FROM dbos.operation_outputs o
JOIN agent.tasks t ON t.task_id = o.workflow_uuid
CROSS JOIN LATERAL (SELECT agent.as_json(o.output) AS record) r;

CREATE VIEW agent.in_doubt AS
SELECT e.session_id, e.task_id, e.tool, e.arguments, e.idempotency_key, e.started_at,
    e.call_id, e.policy, e.attempts, e.worker_id
FROM agent.effects e
LEFT JOIN dbos.workflow_status s ON s.workflow_uuid = e.task_id
LEFT JOIN agent.workers w ON w.worker_id = e.worker_id
WHERE e.state = 'unknown'
   OR e.state = 'started' AND (s.owner_xid IS DISTINCT FROM e.owner OR w.state IS DISTINCT FROM 'alive'
                               AND w.state IS DISTINCT FROM 'draining');

CREATE VIEW agent.dead_letters AS
SELECT task_id, session_id, agent, input, coalesce(error, 'restarted too often') AS reason, crashes,
    coalesce(finished_at, accepted_at) AS at, hangs, steps, evidence
FROM agent.task_status WHERE status = 'dead';

CREATE VIEW agent.session_status AS
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

CREATE VIEW agent.tool_usage AS
SELECT t.agent, substr(o.function_name, 6) AS tool, count(*) AS calls,
    count(*) FILTER (WHERE agent.as_json(coalesce(o.output, o.error))->>'outcome' IS DISTINCT FROM 'returned') AS failures,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY o.completed_at_epoch_ms - o.started_at_epoch_ms) AS p50_ms,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY o.completed_at_epoch_ms - o.started_at_epoch_ms) AS p95_ms
FROM dbos.operation_outputs o JOIN agent.tasks t ON t.task_id = o.workflow_uuid
WHERE o.function_name LIKE 'tool.%'
GROUP BY t.agent, substr(o.function_name, 6);

-- The sentence a user reads after an interruption.
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
            || CASE steps WHEN 0 THEN '; no step was on record yet.'
                WHEN 1 THEN '; 1 recorded step is kept and will not run again.'
                ELSE format('; %s recorded steps are kept and will not run again.', steps) END,
        CASE WHEN doubts IS NULL THEN 'Nothing is in doubt.'
             ELSE format('In doubt, because nobody recorded how it ended: %s.', doubts) END,
        'Next: the task goes on by itself' || CASE WHEN goes_on = 'infinity' THEN ' as soon as it may.'
            WHEN goes_on > moment THEN to_char(goes_on AT TIME ZONE 'UTC', '" at "HH24:MI:SS" UTC."') ELSE '.' END,
        'If something here is wrong, correct it, and the correction counts.')
$$;

-- Tells a session's user, once per interruption, in the transaction that ends the interruption, and has the rest of
-- what is owed done beside the tasks: the handoff, and the message to the outside.
CREATE FUNCTION agent.notice_interruption(of_session text, of_task text, notice_kind text, occasion text)
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

-- The last tool calls of a task, oldest first, and what did not succeed, from the journal.
CREATE FUNCTION agent.worked(of_session text, of_task text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_object('tool', r.data->>'tool', 'outcome', r.data->>'outcome') ORDER BY r.seq), '[]')
    FROM (SELECT j.seq, j.data FROM agent.journal j
          WHERE j.session_id = of_session AND j.task_id = of_task AND j.kind = 'tool.finished'
            AND j.seq > (SELECT s.journal_seq - 200 FROM agent.sessions s WHERE s.session_id = of_session)
          ORDER BY j.seq DESC LIMIT 12) r
$$;

-- What a running task has to do before its next step: nothing, wait (pause) or end (cancel, interrupt).
CREATE FUNCTION agent.wanted(task text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT coalesce(t.control, CASE WHEN s.mode = 'paused' THEN 'pause' END)
    FROM agent.tasks t JOIN agent.sessions s USING (session_id) WHERE t.task_id = task
$$;

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

-- Words for a task, in the order they came.
CREATE FUNCTION agent.steers_of(task text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_object('input', s.input, 'place', s.place) ORDER BY s.steer_id), '[]')
    FROM agent.steers s WHERE s.task_id = task
$$;

-- The state of the work as one session's next request needs it. After an interruption, also what the task has done
-- and, when no checkpoint was kept, the newest handoff; a task that replaces another one gets that one's.
CREATE FUNCTION agent.restored(of_session text, of_task text, is_recovering boolean) RETURNS jsonb
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
        'wanted', coalesce(agent.wanted(of_task), (SELECT 'budget' FROM agent.used_up(of_session) LIMIT 1)),
        'steers', agent.steers_of(of_task),
        'pending', coalesce((SELECT jsonb_agg(left(p.input, 200) ORDER BY p.seq) FROM (
            SELECT t.input, t.seq FROM agent.tasks t JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
            WHERE t.session_id = of_session AND t.task_id <> of_task AND s.status IN ('ENQUEUED', 'DELAYED')
            ORDER BY t.seq LIMIT 10) p), '[]'))
    FROM (SELECT (SELECT t.continues FROM agent.tasks t WHERE t.task_id = of_task AND t.kind = 'replacement') AS task_id) replaced
$$;

-- Keeps the state of the work; only the execution that owns the task may.
CREATE FUNCTION agent.write_checkpoint(task text, owner text, state jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    of_session text;
BEGIN
    PERFORM agent.hold(task, owner);
    SELECT t.session_id INTO STRICT of_session FROM agent.tasks t WHERE t.task_id = task;
    PERFORM agent.keep_checkpoint(of_session, state);
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

-- Records what a request left out: messages behind a summary, or, without one, only the results of old calls.
-- Repeating it changes nothing.
CREATE FUNCTION agent.record_compaction(
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
    since := coalesce(CASE WHEN words IS NULL THEN (
        SELECT max(c.through) FROM agent.compactions c WHERE c.session_id = of_session AND c.strategy = how)
        ELSE (agent.last_compaction(of_session)->>'through')::integer END, 0);
    INSERT INTO agent.compactions (session_id, through, after, task_id, tokens_before, tokens_after, strategy, summary,
        exam_score, note)
    VALUES (of_session, cut, since, task, before, remaining, how, words, score, remark) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        UPDATE agent.sessions SET compactions = compactions + 1 WHERE session_id = of_session;
        moment := agent.append_event(of_session, task, 'context.compacted', jsonb_strip_nulls(jsonb_build_object(
            'through', cut, 'after', since, 'tokens_before', before, 'tokens_after', remaining, 'strategy', how,
            'exam_score', score, 'note', remark)));
        UPDATE agent.compactions SET seq = moment WHERE session_id = of_session AND through = cut AND strategy = how;
    END IF;
END $$;

-- The files of a session as its past says: the newest row of each path, unless that removed it. With `through`, as they
-- were after that event of the session.
CREATE FUNCTION agent.manifest(of_session text, through bigint DEFAULT NULL)
RETURNS TABLE (path text, sha256 bytea, size integer)
LANGUAGE sql STABLE AS $$
    SELECT n.path, n.sha256, n.size FROM (
        SELECT DISTINCT ON (f.path) f.path, f.sha256, f.size
        FROM agent.past(of_session) WITH ORDINALITY AS p (session_id, after, until, place)
        JOIN agent.files f ON f.session_id = p.session_id AND f.seq > p.after AND (p.until IS NULL OR f.seq <= p.until)
        WHERE manifest.through IS NULL OR f.session_id <> of_session OR f.seq <= manifest.through
        ORDER BY f.path, p.place DESC, f.seq DESC) n
    WHERE n.sha256 IS NOT NULL
$$;

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
              AND w.status IN ('ENQUEUED', 'DELAYED')), '[]'),
        'files', coalesce((SELECT jsonb_agg(c.path ORDER BY c.path)
            FROM (SELECT f.path FROM agent.files f JOIN agent.manifest(of_session) m ON m.path = f.path
                  WHERE f.session_id = of_session GROUP BY f.path ORDER BY max(f.seq) DESC LIMIT 50) c), '[]'))
    FROM agent.sessions s
    LEFT JOIN LATERAL (
        SELECT k.task_id, k.input FROM agent.tasks k WHERE k.session_id = of_session
          AND (of_task IS NULL OR k.task_id = of_task) ORDER BY k.seq DESC NULLS LAST LIMIT 1) t ON true
    WHERE s.session_id = of_session
$$;

-- Has a small workflow run once beside the tasks.
CREATE FUNCTION agent.care(workflow text, id text, VARIADIC args json[]) RETURNS void
LANGUAGE sql AS $$
    SELECT dbos.enqueue_workflow(workflow, 'perdure_care', args, workflow_id => id, app_version => 'perdure-1',
        application_name => 'perdure')
$$;

-- Puts care that nobody living is at back on its queue, or that of one worker who leaves.
CREATE FUNCTION agent.free_care(leaving text) RETURNS void
LANGUAGE sql AS $$
    UPDATE dbos.workflow_status s SET status = 'ENQUEUED', owner_xid = NULL, started_at_epoch_ms = NULL
    WHERE s.status = 'PENDING' AND s.queue_name = 'perdure_care' AND (s.executor_id = leaving OR NOT EXISTS (
        SELECT 1 FROM agent.workers w WHERE w.worker_id = s.executor_id AND w.state IN ('alive', 'draining')))
$$;

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
    SELECT greatest(s.waits_until, s.budget_until, CASE WHEN s.mode = 'paused' OR EXISTS (
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

-- Puts all that waits in a session where it belongs now.
CREATE FUNCTION agent.place_session(of_session text) RETURNS void
LANGUAGE sql AS $$
    SELECT agent.place_task(w.workflow_uuid) FROM (
        SELECT s.workflow_uuid FROM dbos.workflow_status s JOIN agent.tasks t ON t.task_id = s.workflow_uuid
        WHERE t.session_id = of_session AND s.status IN ('ENQUEUED', 'DELAYED')
        ORDER BY s.workflow_uuid FOR NO KEY UPDATE OF s) w
$$;

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
    UPDATE agent.approvals SET honoured_by = NULL, honoured_as = NULL WHERE honoured_by = task;
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

-- A task killed the worker that ran nothing else, or held it up until it was killed: it is the one.
CREATE FUNCTION agent.convict(task text, worker text, allowed integer, wind interval, pause double precision) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    guilty  agent.tasks%ROWTYPE;
    how     text;
    is_hang boolean;
BEGIN
    SELECT * INTO guilty FROM agent.tasks WHERE task_id = task;
    SELECT w.ended, w.hung INTO how, is_hang FROM agent.workers w WHERE w.worker_id = worker;
    INSERT INTO agent.crashes (worker_id, task_id, session_id, agent, tool)
    VALUES (worker, task, guilty.session_id, guilty.agent, agent.tool_under_way(task))
    ON CONFLICT DO NOTHING;
    UPDATE agent.crashes SET is_blamed = true WHERE task_id = task;
    UPDATE agent.tasks SET crashes = crashes + 1 WHERE task_id = task;
    PERFORM agent.bury(task, format('%s its worker, alone in a process of its own (%s)',
            CASE WHEN is_hang THEN 'hang: it held up' ELSE 'it killed' END, how),
        jsonb_build_object('reason', CASE WHEN is_hang THEN 'hang' ELSE 'crash' END, 'exit', how,
            'attempts', guilty.crashes + 1, 'worker', worker,
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

-- How a process ended, as seen by who started it, and whether it was ended because it hung.
CREATE FUNCTION agent.note_end(worker text, how text, is_hang boolean DEFAULT false) RETURNS void
LANGUAGE sql AS $$
    UPDATE agent.workers SET ended = how, hung = is_hang WHERE worker_id = worker
$$;

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

-- The past of a session, oldest segment first: a row of `session_id` counts when after < seq <= through.
CREATE FUNCTION agent.past(of_session text) RETURNS TABLE (session_id text, after bigint, through bigint)
LANGUAGE sql STABLE AS $$
    SELECT l.of_session, l.after, l.through FROM agent.lineage l WHERE l.session_id = past.of_session
    UNION ALL
    SELECT past.of_session, 0::bigint, NULL::bigint
    WHERE NOT EXISTS (SELECT 1 FROM agent.lineage l WHERE l.session_id = past.of_session)
$$;

-- The newest summary of a session's past.
CREATE FUNCTION agent.last_compaction(of_session text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('through', c.through, 'summary', c.summary)
    FROM agent.past(of_session) p JOIN agent.compactions c
      ON c.session_id = p.session_id AND c.seq > p.after AND (p.through IS NULL OR c.seq <= p.through)
    WHERE c.summary IS NOT NULL
    ORDER BY c.through DESC LIMIT 1
$$;

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

-- A running task of a paused session waits where it stands.
CREATE FUNCTION agent.stop_here(task text, owner text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM agent.hold(task, owner);
    PERFORM agent.append_event(t.session_id, task, 'task.paused', '{}') FROM agent.tasks t WHERE t.task_id = task;
    PERFORM agent.place_task(task);
END $$;

-- Words for a running task take their place in its conversation, once.
CREATE FUNCTION agent.deliver_steers(task text, owner text, at_place integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM agent.hold(task, owner);
    PERFORM agent.append_event(s.session_id, task, 'steer.delivered', jsonb_build_object('input', left(s.input, 2000)))
    FROM agent.steers s WHERE s.task_id = task AND s.place IS NULL;
    UPDATE agent.steers SET place = at_place WHERE task_id = task AND place IS NULL;
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
-- Whether files are what they say is checked by `perdure import` and the client before, and else when they are restored.
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

-- A file of the task's session has this content, or with none is removed. Says at which event, if that is a change.
-- Locks: the DBOS row, then the session, then the contents, which agent.sweep_blobs takes last too.
CREATE FUNCTION agent.save_file(
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

-- Contents that no session uses any more are gone; call it after sessions were deleted, last in the transaction.
CREATE FUNCTION agent.sweep_blobs() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    swept bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('perdure.blobs'));
    DELETE FROM agent.blobs b WHERE NOT EXISTS (SELECT 1 FROM agent.files f WHERE f.sha256 = b.sha256);
    GET DIAGNOSTICS swept = ROW_COUNT;
    RETURN swept;
END $$;

CREATE VIEW agent.schedule_status AS
SELECT s.name, s.agent, s.session_id, s.user_id, s.input, s.cron, s.at, s.timezone, s.missed, s.next_at, s.last_at,
    s.last_task_id, t.status AS last_status, a.what AS problem, s.created_at
FROM agent.schedules s LEFT JOIN agent.task_status t ON t.task_id = s.last_task_id
LEFT JOIN agent.alerts a ON a.key = 'schedule:' || s.name AND a.resolved_at IS NULL;

-- A moment as DBOS's scheduler writes it.
CREATE FUNCTION agent.as_iso(moment timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')
$$;

-- A schedule and its row at DBOS's scheduler exist, or nothing was written. `pattern` is what DBOS is to keep time by;
-- as it makes up what came before it looked, an occurrence in the seconds until then is not lost. The name of one whose
-- only moment is over, and owes no run, can be used again.
CREATE FUNCTION agent.schedule(new_name text, for_agent text, new_input text, for_session text, for_user text,
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

-- The schedule is gone, what it has fired and nobody has run yet included. Tasks it has enqueued stay.
CREATE FUNCTION agent.unschedule(old_name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM agent.schedules WHERE name = old_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no schedule %', quote_literal(old_name) USING ERRCODE = 'PD404';
    END IF;
    DELETE FROM dbos.workflow_schedules WHERE schedule_name = 'perdure:' || old_name;
    PERFORM agent.resolve_alert('schedule:' || old_name);
END $$;

-- Runs one occurrence: the same one gives the same task. One that was fired too late counts as missed, unless it is
-- `owed`; of those the policy makes up at most the last. Whatever stands in the way is an alert until a run succeeds.
CREATE FUNCTION agent.fire(of_schedule text, occurrence timestamptz, following timestamptz, run text, owed boolean,
    late_seconds double precision) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    known    agent.schedules%ROWTYPE;
    fired_at timestamptz;
    task     text;
    problem  text;
BEGIN
    SELECT s.* INTO known FROM agent.schedules s WHERE s.name = of_schedule FOR UPDATE;
    IF NOT FOUND OR known.at <> occurrence THEN RETURN NULL; END IF;
    UPDATE agent.schedules SET next_at = CASE WHEN at IS NULL THEN greatest(next_at, following) END
    WHERE name = of_schedule;
    IF known.at IS NOT NULL THEN
        DELETE FROM dbos.workflow_schedules WHERE schedule_name = 'perdure:' || of_schedule;
    END IF;
    SELECT to_timestamp(w.created_at / 1000.0) INTO fired_at FROM dbos.workflow_status w WHERE w.workflow_uuid = run;
    IF NOT owed AND fired_at > occurrence + make_interval(secs => late_seconds)
       AND (known.missed = 'skip' OR following <= fired_at) THEN
        RETURN NULL;
    END IF;

    BEGIN
        IF NOT EXISTS (SELECT 1 FROM agent.workers w WHERE w.state IN ('alive', 'draining') AND known.agent = ANY (w.agents)) THEN
            RAISE EXCEPTION 'no worker serves agent % any more', quote_literal(known.agent) USING ERRCODE = 'PD404';
        END IF;
        task := agent.enqueue(known.agent, known.input, session_id => known.session_id, user_id => known.user_id,
            idempotency_key => 'schedule:' || of_schedule || ':' || agent.as_iso(occurrence));
    EXCEPTION WHEN SQLSTATE 'PD400' OR SQLSTATE 'PD403' OR SQLSTATE 'PD404' OR SQLSTATE 'PD409' OR SQLSTATE 'PD413' THEN
        problem := SQLERRM;
    END;
    IF problem IS NOT NULL THEN
        PERFORM agent.raise_alert('schedule:' || of_schedule,
            format('Schedule %s could not run at %s: %s.', of_schedule,
                to_char(occurrence AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'), problem),
            CASE WHEN known.at IS NULL THEN 'Nothing was enqueued; it is tried again at its next time.'
                 ELSE 'Nothing was enqueued, and its only moment is over.' END,
            format('Put right what is in the way, or remove it: perdure schedule remove %s', of_schedule));
        RETURN NULL;
    END IF;
    UPDATE agent.schedules SET last_task_id = task, last_at = occurrence
    WHERE name = of_schedule AND (last_at IS NULL OR last_at <= occurrence);
    PERFORM agent.resolve_alert('schedule:' || of_schedule);
    RETURN task;
END $$;

-- Until when the worker lived that was there at a moment. Between two beats, one that was killed has the benefit of
-- the doubt.
CREATE FUNCTION agent.watched_until(moment timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT max(w.ended_at) FROM (
        SELECT started_at, beat_at + CASE WHEN state = 'stopped' THEN interval '0' ELSE make_interval(secs => beat_seconds) END
            AS ended_at FROM agent.workers) w
    WHERE w.started_at <= moment AND w.ended_at >= moment
$$;

-- Of a schedule that is overdue, the occurrence that is owed will run, and DBOS makes up no other. Does nothing when
-- somebody else was first.
CREATE FUNCTION agent.catch_up(of_schedule text, overdue timestamptz, owed timestamptz, following timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agent.schedules SET next_at = following WHERE name = of_schedule AND next_at = overdue;
    IF NOT FOUND THEN RETURN; END IF;
    IF owed IS NOT NULL THEN
        PERFORM agent.care('fire_schedule', 'owed-' || of_schedule || '-' || agent.as_iso(owed),
            to_json(agent.as_iso(owed)), to_json(of_schedule), to_json(true));
    END IF;
    IF following IS NULL THEN
        DELETE FROM dbos.workflow_schedules WHERE schedule_name = 'perdure:' || of_schedule;
    ELSE
        UPDATE dbos.workflow_schedules SET last_fired_at = agent.as_iso(clock_timestamp())
        WHERE schedule_name = 'perdure:' || of_schedule;
    END IF;
END $$;

-- A session without a task. The same id, agent and user again change nothing, and say so.
CREATE FUNCTION agent.make_session(new_session text, for_agent text, for_user text, new_title text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    known agent.sessions%ROWTYPE;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM agent.agents a WHERE a.name = for_agent) THEN
        RAISE EXCEPTION 'there is no agent named %; registered are: %', quote_literal(coalesce(for_agent, '')),
            coalesce((SELECT string_agg(a.name, ', ' ORDER BY a.name) FROM agent.agents a), 'none yet, start a worker first')
            USING ERRCODE = 'PD404';
    ELSIF new_session = '' OR length(new_session) > 200 OR new_session ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'a session id has 1 to 200 characters and no control characters' USING ERRCODE = 'PD400';
    ELSIF length(for_user) > 200 THEN
        RAISE EXCEPTION 'a user id has at most 200 characters' USING ERRCODE = 'PD400';
    END IF;
    INSERT INTO agent.sessions (session_id, agent, user_id, title)
    VALUES (new_session, for_agent, for_user, new_title) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM agent.append_event(new_session, NULL, 'session.made', jsonb_build_object('agent', for_agent));
        RETURN true;
    END IF;
    SELECT * INTO known FROM agent.sessions WHERE session_id = new_session;
    PERFORM agent.check_owner(known, for_agent, for_user);
    RETURN false;
END $$;

-- The day that budgets and sums go by.
CREATE FUNCTION agent.today() RETURNS date
LANGUAGE sql STABLE AS $$
    SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date
$$;

-- Adds what requests for a task used and cost. Called once per recorded step, in its transaction.
CREATE FUNCTION agent.spend(of_task text, items jsonb) RETURNS void
LANGUAGE sql AS $$
    WITH given AS (
        SELECT t.task_id, t.session_id, t.agent, coalesce(t.user_id, '') AS user_id, agent.today() AS day,
            coalesce(i->>'model', 'unknown') AS model, i->>'purpose' AS purpose,
            coalesce((i->>'input_tokens')::bigint, 0) AS input, coalesce((i->>'output_tokens')::bigint, 0) AS output,
            coalesce((i->>'cache_read_tokens')::bigint, 0) AS cache_read,
            coalesce((i->>'cache_write_tokens')::bigint, 0) AS cache_write, (i->>'cost_usd')::numeric AS cost
        FROM agent.tasks t, jsonb_array_elements(items) i WHERE t.task_id = of_task),
    kept AS (
        INSERT INTO agent.spent AS s (task_id, day, model, purpose, agent, user_id, session_id, requests, unpriced_requests,
            input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd)
        SELECT task_id, day, model, purpose, agent, user_id, session_id, count(*), count(*) FILTER (WHERE cost IS NULL),
            sum(input), sum(output), sum(cache_read), sum(cache_write), sum(cost)
        FROM given GROUP BY task_id, day, model, purpose, agent, user_id, session_id
        ON CONFLICT (task_id, day, model, purpose, agent, user_id) DO UPDATE SET
            requests = s.requests + excluded.requests, unpriced_requests = s.unpriced_requests + excluded.unpriced_requests,
            input_tokens = s.input_tokens + excluded.input_tokens, output_tokens = s.output_tokens + excluded.output_tokens,
            cache_read_tokens = s.cache_read_tokens + excluded.cache_read_tokens,
            cache_write_tokens = s.cache_write_tokens + excluded.cache_write_tokens,
            cost_usd = coalesce(s.cost_usd + excluded.cost_usd, s.cost_usd, excluded.cost_usd))
    INSERT INTO agent.tallies AS y (scope, name, day, tokens, cost_usd)
    SELECT v.scope, v.name, g.day, sum(g.input + g.output), sum(g.cost)
    FROM given g CROSS JOIN LATERAL (VALUES ('session', g.session_id), ('user', g.user_id)) v (scope, name)
    WHERE v.name <> '' GROUP BY v.scope, v.name, g.day ORDER BY v.scope, v.name
    ON CONFLICT (scope, name, day) DO UPDATE SET tokens = y.tokens + excluded.tokens,
        cost_usd = coalesce(y.cost_usd + excluded.cost_usd, y.cost_usd, excluded.cost_usd)
$$;

-- What a session that is deleted has cost stays, without its name; its own sums and budgets go.
CREATE FUNCTION agent.fold_spending() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (DELETE FROM agent.spent WHERE session_id = OLD.session_id RETURNING *)
    INSERT INTO agent.spent AS s (task_id, day, model, purpose, agent, user_id, session_id, requests, unpriced_requests,
        input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd)
    SELECT '', day, model, purpose, agent, user_id, '', sum(requests), sum(unpriced_requests), sum(input_tokens),
        sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens), sum(cost_usd)
    FROM gone GROUP BY day, model, purpose, agent, user_id ORDER BY day, model, purpose, agent, user_id
    ON CONFLICT (task_id, day, model, purpose, agent, user_id) DO UPDATE SET
        requests = s.requests + excluded.requests, unpriced_requests = s.unpriced_requests + excluded.unpriced_requests,
        input_tokens = s.input_tokens + excluded.input_tokens, output_tokens = s.output_tokens + excluded.output_tokens,
        cache_read_tokens = s.cache_read_tokens + excluded.cache_read_tokens,
        cache_write_tokens = s.cache_write_tokens + excluded.cache_write_tokens,
        cost_usd = coalesce(s.cost_usd + excluded.cost_usd, s.cost_usd, excluded.cost_usd);
    DELETE FROM agent.tallies WHERE scope = 'session' AND name = OLD.session_id;
    DELETE FROM agent.budgets WHERE scope = 'session' AND name = OLD.session_id;
    WITH gone AS (DELETE FROM agent.alerts WHERE key = 'budget:session:' || OLD.session_id RETURNING alert_id)
    DELETE FROM dbos.workflow_status w USING gone WHERE w.workflow_uuid LIKE 'alert:' || gone.alert_id || ':%'
      AND w.queue_name = 'perdure_care';
    RETURN NULL;
END $$;

CREATE TRIGGER fold_spending AFTER DELETE ON agent.sessions FOR EACH ROW EXECUTE FUNCTION agent.fold_spending();

-- What was spent, as people read it. Rows without a session are those of sessions that were deleted.
CREATE VIEW agent.usage AS
SELECT day, nullif(task_id, '') AS task_id, nullif(session_id, '') AS session_id, nullif(user_id, '') AS user_id, agent,
    model, purpose, requests, unpriced_requests, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd
FROM agent.spent;

-- The budgets that hold for a session or a user, its own or else those for all, and what is spent of them.
CREATE FUNCTION agent.budgets_of(of_scope text, of_name text)
RETURNS TABLE (scope text, name text, period text, cost_usd numeric, tokens bigint, spent_usd numeric, spent_tokens bigint,
    is_used_up boolean)
LANGUAGE sql STABLE AS $$
    SELECT of_scope, of_name, b.period, b.cost_usd, b.tokens, t.cost, t.tokens,
        coalesce(t.cost >= b.cost_usd, false) OR coalesce(t.tokens >= b.tokens, false)
    FROM agent.budgets b CROSS JOIN LATERAL (
        SELECT coalesce(sum(y.cost_usd), 0) AS cost, coalesce(sum(y.tokens), 0)::bigint AS tokens FROM agent.tallies y
        WHERE y.scope = of_scope AND y.name = of_name AND (b.period = 'total' OR y.day = agent.today())) t
    WHERE of_name <> '' AND b.scope = of_scope AND b.name = CASE WHEN EXISTS (
        SELECT 1 FROM agent.budgets o WHERE o.scope = of_scope AND o.name = of_name) THEN of_name ELSE '' END
$$;

-- The budgets that keep a session from its next request.
CREATE FUNCTION agent.used_up(of_session text)
RETURNS TABLE (scope text, name text, period text, cost_usd numeric, tokens bigint, spent_usd numeric, spent_tokens bigint,
    is_used_up boolean)
LANGUAGE sql STABLE AS $$
    SELECT b.* FROM agent.sessions s
    CROSS JOIN LATERAL (VALUES ('session', s.session_id), ('user', s.user_id)) v (scope, name)
    CROSS JOIN LATERAL agent.budgets_of(v.scope, v.name) b
    WHERE s.session_id = of_session AND b.is_used_up
$$;

-- A task whose session may spend no more waits where it stands, and the session with it. Its user is told once, and so is
-- whoever runs the service. False when there is room again, and nothing has changed.
CREATE FUNCTION agent.stop_for_budget(task text, owner text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    known agent.sessions%ROWTYPE;
    ends  timestamptz;
    which text;
    told  agent.notices%ROWTYPE;
BEGIN
    PERFORM agent.hold(task, owner);
    PERFORM pg_advisory_xact_lock_shared(hashtext('perdure.budgets'));
    SELECT s.* INTO known FROM agent.sessions s JOIN agent.tasks t USING (session_id) WHERE t.task_id = task FOR UPDATE OF s;
    SELECT max(CASE u.period WHEN 'total' THEN 'infinity'::timestamptz
            ELSE (agent.today() + 1)::timestamp AT TIME ZONE 'UTC' END),
        string_agg(DISTINCT CASE u.scope WHEN 'session' THEN 'this session' ELSE 'this user' END
            || CASE u.period WHEN 'day' THEN ' for today' ELSE '' END, ' and that of ')
    INTO ends, which FROM agent.used_up(known.session_id) u;
    IF ends IS NULL THEN RETURN false; END IF;
    IF known.budget_until IS NULL OR known.budget_until < clock_timestamp() THEN
        INSERT INTO agent.notices (session_id, kind, body) VALUES (known.session_id, 'budget', concat_ws(' ',
            format('The budget of %s is used up, so this session waits before its next request to the model.', which),
            'Nothing is lost: what is done is kept, and messages are accepted.',
            CASE WHEN ends = 'infinity' THEN 'It goes on by itself as soon as the budget is raised.'
                 ELSE to_char(ends AT TIME ZONE 'UTC', '"It goes on by itself at "YYYY-MM-DD HH24:MI" UTC, or as soon as the budget is raised."')
            END))
        RETURNING * INTO told;
        PERFORM agent.append_event(known.session_id, task, 'session.paused',
            jsonb_build_object('by', 'budget', 'until', ends::text, 'notice_id', told.notice_id));
        PERFORM agent.care('deliver_notice', 'deliver:' || told.notice_id, to_json(told.notice_id), to_json(told.times));
        PERFORM agent.raise_alert('budget:' || u.scope || ':' || u.name,
            format('The budget of %s %s is used up: %s USD and %s tokens spent %s.', u.scope, quote_literal(u.name),
                round(u.spent_usd, 4), u.spent_tokens, CASE u.period WHEN 'day' THEN 'today' ELSE 'in all' END),
            'Its sessions wait before their next request to a model, and their users were told.',
            format('Raise it: perdure budget set %s %s --usd … or --tokens …%s.', u.scope, u.name,
                CASE u.period WHEN 'day' THEN ' --per day; or wait until midnight UTC' ELSE '' END))
        FROM agent.used_up(known.session_id) u;
    END IF;
    UPDATE agent.sessions SET budget_until = ends WHERE session_id = known.session_id;
    PERFORM agent.append_event(known.session_id, task, 'task.paused', jsonb_build_object('by', 'budget'));
    PERFORM agent.place_session(known.session_id);
    PERFORM agent.place_task(task);
    RETURN true;
END $$;

-- Sessions that wait for nothing but a budget with room in it go on, and alerts about such budgets are over.
CREATE FUNCTION agent.release_budgets() RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    held text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('perdure.budgets'));
    FOR held IN SELECT s.session_id FROM agent.sessions s WHERE s.budget_until IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM agent.used_up(s.session_id)) ORDER BY s.session_id
    LOOP
        UPDATE agent.sessions SET budget_until = NULL WHERE session_id = held;
        PERFORM agent.append_event(held, NULL, 'session.resumed', jsonb_build_object('by', 'budget'));
        PERFORM agent.place_session(held);
        RETURN NEXT held;
    END LOOP;
    PERFORM agent.resolve_alert(a.key) FROM agent.alerts a
    WHERE a.resolved_at IS NULL AND a.key LIKE 'budget:%' AND NOT EXISTS (
        SELECT 1 FROM agent.budgets_of(split_part(a.key, ':', 2), substr(a.key, length(split_part(a.key, ':', 2)) + 9)) b
        WHERE b.is_used_up);
END $$;

-- A session or a user may spend this much per day or in all; what waited for it goes on.
CREATE FUNCTION agent.set_budget(of_scope text, of_name text, of_period text, money numeric, most_tokens bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF of_scope NOT IN ('session', 'user') OR of_period NOT IN ('day', 'total') THEN
        RAISE EXCEPTION 'a budget is that of a session or a user, per day or total' USING ERRCODE = 'PD400';
    ELSIF of_name = '' OR length(of_name) > 200 OR of_name ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'an id has 1 to 200 characters and no control characters' USING ERRCODE = 'PD400';
    ELSIF money IS NULL AND most_tokens IS NULL OR money < 0 OR most_tokens < 0 OR money IN ('NaN', 'Infinity') THEN
        RAISE EXCEPTION 'a budget is an amount of money or of tokens, not below zero' USING ERRCODE = 'PD400';
    END IF;
    INSERT INTO agent.budgets (scope, name, period, cost_usd, tokens)
    VALUES (of_scope, of_name, of_period, money, most_tokens)
    ON CONFLICT (scope, name, period) DO UPDATE SET cost_usd = money, tokens = most_tokens, set_at = clock_timestamp();
    PERFORM agent.release_budgets();
END $$;

-- The budget is gone, or without a period all of that name; what waited for it goes on.
CREATE FUNCTION agent.remove_budget(of_scope text, of_name text, of_period text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM agent.budgets b WHERE b.scope = of_scope AND b.name = of_name AND of_name <> ''
      AND (of_period IS NULL OR b.period = of_period);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no budget of % %', of_scope, quote_literal(of_name) USING ERRCODE = 'PD404';
    END IF;
    PERFORM agent.release_budgets();
END $$;

-- The budgets for all that have none of their own are these and no others.
CREATE FUNCTION agent.set_default_budgets(given jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('perdure.budgets'));
    DELETE FROM agent.budgets WHERE name = '';
    INSERT INTO agent.budgets (scope, name, period, cost_usd, tokens)
    SELECT g->>'scope', '', g->>'period', (g->>'cost_usd')::numeric, (g->>'tokens')::bigint FROM jsonb_array_elements(given) g;
    PERFORM agent.release_budgets();
END $$;

-- What /metrics shows of the database, in one look at small indexes; no count goes beyond 100,000.
CREATE FUNCTION agent.gauges() RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'tasks', jsonb_build_object(
            'queued', (SELECT count(*) FROM ((  -- each with an index of its own
                SELECT 1 FROM dbos.workflow_status w WHERE w.status = 'ENQUEUED'
                AND w.queue_name IN ('perdure', 'perdure_isolation') LIMIT 100000) UNION ALL (
                SELECT 1 FROM dbos.workflow_status w WHERE w.status = 'DELAYED'
                AND w.queue_name IN ('perdure', 'perdure_isolation') LIMIT 100000)) q),
            'running', (SELECT count(*) FROM (SELECT 1 FROM dbos.workflow_status w WHERE w.status = 'PENDING'
                AND w.queue_name IN ('perdure', 'perdure_isolation') LIMIT 100000) q),
            'waiting', (SELECT count(DISTINCT q.task_id) FROM (
                SELECT a.task_id FROM agent.approvals a WHERE a.decision IS NULL LIMIT 100000) q)),
        'dead', (SELECT count(*) FROM (SELECT 1 FROM agent.tasks t WHERE t.outcome = 'dead' LIMIT 100000) q),
        'in_doubt', (SELECT count(*) FROM (SELECT 1 FROM agent.in_doubt LIMIT 100000) q),
        'workers', (SELECT jsonb_object_agg(v.state, (SELECT count(*) FROM (
                SELECT 1 FROM agent.workers w WHERE w.state = v.state LIMIT 100000) q))
            FROM (VALUES ('alive'), ('draining'), ('stopped'), ('dead')) v (state)),
        'breakers', (SELECT jsonb_object_agg(v.state, (SELECT count(*) FROM agent.breakers b WHERE b.state = v.state))
            FROM (VALUES ('open'), ('half-open')) v (state)),
        'alerts', (SELECT count(*) FROM (SELECT 1 FROM agent.alerts a WHERE a.resolved_at IS NULL LIMIT 100000) q),
        'over_budget', (SELECT count(*) FROM (SELECT 1 FROM agent.sessions s WHERE s.budget_until IS NOT NULL
            LIMIT 100000) q))
$$;
