-- A process that hung is told from one that crashed, and so is the task that was alone in it.

ALTER TABLE agent.workers ADD COLUMN hung boolean NOT NULL DEFAULT false;

DROP FUNCTION agent.note_end(text, text);

-- How a process ended, as seen by who started it, and whether it was ended because it hung.
CREATE FUNCTION agent.note_end(worker text, how text, is_hang boolean DEFAULT false) RETURNS void
LANGUAGE sql AS $$
    UPDATE agent.workers SET ended = how, hung = is_hang WHERE worker_id = worker
$$;

-- A task killed the worker that ran nothing else, or held it up until it was killed: it is the one.
CREATE OR REPLACE FUNCTION agent.convict(task text, worker text, allowed integer, wind interval, pause double precision) RETURNS void
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

-- The alerts of keepers have other keys from now on.
SELECT agent.resolve_alert(key) FROM agent.alerts WHERE key LIKE 'keeper:%' AND resolved_at IS NULL;
