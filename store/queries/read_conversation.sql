-- Nothing changes; what was said in a session, in order, with each notice where it happened: a task's input stands when it
-- began, what followed when it ended.
WITH told AS (
    SELECT m.position, m.task_id, m.message, CASE WHEN m.session_id = %(session)s THEN m.seq END AS seq,
        coalesce(t.started_at, t.accepted_at) AS started_at, t.finished_at,
        row_number() OVER (PARTITION BY m.task_id ORDER BY m.position) = 1 AS is_first
    FROM agent.past(%(session)s) p
    JOIN agent.messages m
      ON m.session_id = p.session_id AND m.seq > p.after AND (p.through IS NULL OR m.seq <= p.through)
    JOIN agent.tasks t USING (task_id)),
said AS (
    SELECT position, task_id, NULL::bigint AS notice_id, message, seq,
        max(CASE WHEN is_first THEN started_at ELSE coalesce(finished_at, started_at) END) OVER (ORDER BY position) AS at
    FROM told
    UNION ALL
    SELECT NULL, n.task_id, n.notice_id,
        jsonb_build_object('kind', 'notice', 'parts', jsonb_build_array(jsonb_build_object(
            'part_kind', n.kind, 'content', n.body))), NULL, n.at
    FROM agent.notices n WHERE n.session_id = %(session)s),
placed AS (SELECT *, row_number() OVER (ORDER BY at, notice_id NULLS FIRST, position) AS place FROM said)
SELECT position, task_id, notice_id, message, at, seq FROM placed
WHERE place > coalesce((SELECT max(place) FROM placed
    WHERE position = %(position)s::integer OR notice_id = %(notice)s::bigint), 0)
ORDER BY place LIMIT %(limit)s
