-- Nothing changes; last active first. Words are looked for in titles and in what was said.
SELECT * FROM agent.session_status s
WHERE (%(user)s::text IS NULL OR s.user_id = %(user)s) AND (%(agent)s::text IS NULL OR s.agent = %(agent)s)
  AND (%(state)s::text IS NULL OR s.state = %(state)s)
  AND (%(words)s::text IS NULL OR position(lower(%(words)s) in lower(s.title)) > 0 OR EXISTS (
      SELECT 1 FROM agent.past(s.session_id) p JOIN agent.messages m ON m.session_id = p.session_id AND m.seq > p.after
        AND (p.through IS NULL OR m.seq <= p.through)
      WHERE position(lower(%(words)s) in lower(m.message::text)) > 0))
ORDER BY s.last_active_at DESC LIMIT %(limit)s
