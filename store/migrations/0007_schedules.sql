-- Schedules: an input for an agent by a cron expression, or once at a moment. DBOS's scheduler keeps the time.

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
-- as it makes up what came before it looked, an occurrence in the seconds until then is not lost.
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
