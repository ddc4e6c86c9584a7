-- The workspace: the files of a session, as contents that are stored once and one row per change.

-- Contents, compressed with zstd. `size` is that of the content itself.
CREATE TABLE agent.blobs (
    sha256 bytea PRIMARY KEY CHECK (length(sha256) = 32),
    size   integer NOT NULL,
    data   bytea NOT NULL
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
        INSERT INTO agent.blobs VALUES (save_file.sha256, save_file.size, save_file.data) ON CONFLICT DO NOTHING;
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

CREATE OR REPLACE FUNCTION agent.handoff_facts(of_session text, of_task text) RETURNS jsonb
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
