-- What models used and cost, budgets for it, the trace a task belongs to, and what /metrics reads.
-- Functions name each other in any order.
SET LOCAL check_function_bodies = off;

ALTER TABLE agent.sessions ADD COLUMN budget_until timestamptz;
ALTER TABLE agent.tasks ADD COLUMN traceparent text;
ALTER TABLE agent.notices DROP CONSTRAINT notices_kind_check;
ALTER TABLE agent.notices ADD CONSTRAINT notices_kind_check
    CHECK (kind IN ('crash', 'planned', 'overflow', 'hang', 'incoherent', 'dead', 'budget'));

CREATE INDEX sessions_over_budget ON agent.sessions (session_id) WHERE budget_until IS NOT NULL;
CREATE INDEX tasks_dead ON agent.tasks (task_id) WHERE outcome = 'dead';
CREATE INDEX approvals_open ON agent.approvals (task_id) WHERE decision IS NULL;
CREATE INDEX workers_by_state ON agent.workers (state);

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

DROP FUNCTION agent.enqueue(text, text, text, text, text, integer, text);

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
CREATE OR REPLACE FUNCTION agent.accept_task() RETURNS trigger
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

-- Every recorded step becomes a journal event, a recorded tool call closes its effect, and a suspect that gets this
-- far is none any more.
CREATE OR REPLACE FUNCTION agent.journal_step() RETURNS trigger
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
        'wanted', coalesce(agent.wanted(of_task), (SELECT 'budget' FROM agent.used_up(of_session) LIMIT 1)),
        'steers', agent.steers_of(of_task),
        'pending', coalesce((SELECT jsonb_agg(left(p.input, 200) ORDER BY p.seq) FROM (
            SELECT t.input, t.seq FROM agent.tasks t JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id
            WHERE t.session_id = of_session AND t.task_id <> of_task AND s.status IN ('ENQUEUED', 'DELAYED')
            ORDER BY t.seq LIMIT 10) p), '[]'))
    FROM (SELECT (SELECT t.continues FROM agent.tasks t WHERE t.task_id = of_task AND t.kind = 'replacement') AS task_id) replaced
$$;

-- When a task may run: at once, at a moment, or only when somebody says so.
CREATE OR REPLACE FUNCTION agent.runs_after(task text, of_session text, of_agent text) RETURNS timestamptz
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
    t.hangs, t.is_isolated, t.evidence,
    (SELECT coalesce(sum(u.input_tokens + u.output_tokens), 0)::bigint FROM agent.spent u WHERE u.task_id = t.task_id) AS tokens,
    (SELECT sum(u.cost_usd) FROM agent.spent u WHERE u.task_id = t.task_id) AS cost_usd
FROM agent.tasks t LEFT JOIN dbos.workflow_status s ON s.workflow_uuid = t.task_id;

CREATE OR REPLACE VIEW agent.session_status AS
SELECT s.session_id, s.agent, s.user_id, s.title,
    CASE WHEN s.mode <> 'open' THEN s.mode WHEN s.budget_until > clock_timestamp() THEN 'paused'
         WHEN EXISTS (SELECT 1 FROM agent.breakers b WHERE b.scope = 'session:' || s.session_id) THEN 'quarantined'
         WHEN t.running > 0 THEN 'running' WHEN a.unanswered > 0 THEN 'waiting' ELSE 'idle' END AS state,
    s.parent_session_id, t.open_tasks, t.dead_tasks, s.messages, s.context_tokens, s.context_window,
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
