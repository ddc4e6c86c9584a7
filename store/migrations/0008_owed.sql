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
