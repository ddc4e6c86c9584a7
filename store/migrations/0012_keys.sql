-- Keys for HTTP and sign-ins to the console, both known by their hashes only; sessions made before their first input.

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
