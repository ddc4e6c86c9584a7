-- Results of old calls that a request left out are on record as compactions too: without a summary, and without an exam.
ALTER TABLE agent.compactions ALTER summary DROP NOT NULL, ALTER exam_score DROP NOT NULL,
    DROP CONSTRAINT compactions_pkey, ADD PRIMARY KEY (session_id, through, strategy);

-- Records what a request left out: messages behind a summary, or, without one, only the results of old calls.
-- Repeating it changes nothing.
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

-- The newest summary of a session's past.
CREATE OR REPLACE FUNCTION agent.last_compaction(of_session text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('through', c.through, 'summary', c.summary)
    FROM agent.past(of_session) p JOIN agent.compactions c
      ON c.session_id = p.session_id AND c.seq > p.after AND (p.through IS NULL OR c.seq <= p.through)
    WHERE c.summary IS NOT NULL
    ORDER BY c.through DESC LIMIT 1
$$;
