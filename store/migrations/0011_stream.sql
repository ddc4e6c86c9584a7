-- Answers can be followed while they are made, and whoever follows a session is woken when something happens in it.
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

CREATE OR REPLACE FUNCTION agent.append_event(for_session text, for_task text, event text, facts jsonb) RETURNS bigint
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
        DELETE FROM agent.deltas WHERE task_id = NEW.workflow_uuid;
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
        'steers', agent.steers_of(task));
END $$;
