-- Nothing changes; last active first, or newest first. Words are looked for in titles and in what was said.
WITH page AS MATERIALIZED (
    SELECT s.session_id, CASE WHEN %(by_birth)s THEN s.created_at ELSE s.last_active_at END AS moment
    FROM agent.sessions s
    WHERE (%(user)s::text IS NULL OR s.user_id = %(user)s) AND (%(agent)s::text IS NULL OR s.agent = %(agent)s)
      AND (%(state)s::text IS NULL OR %(state)s = (
          SELECT v.state FROM agent.session_status v WHERE v.session_id = s.session_id))
      AND (%(words)s::text IS NULL OR position(lower(%(words)s) in lower(s.title)) > 0 OR EXISTS (
          SELECT 1 FROM agent.past(s.session_id) p JOIN agent.messages m ON m.session_id = p.session_id
            AND m.seq > p.after AND (p.through IS NULL OR m.seq <= p.through)
          WHERE position(lower(%(words)s) in lower(m.message::text)) > 0))
      AND (%(moment)s::timestamptz IS NULL
           OR (CASE WHEN %(by_birth)s THEN s.created_at ELSE s.last_active_at END, s.session_id COLLATE "C")
              < (%(moment)s, %(after)s::text COLLATE "C"))
    ORDER BY moment DESC, s.session_id COLLATE "C" DESC LIMIT %(limit)s)
SELECT v.* FROM page JOIN agent.session_status v USING (session_id)
ORDER BY page.moment DESC, v.session_id COLLATE "C" DESC
