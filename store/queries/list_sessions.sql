-- Nothing changes; last active first.
WITH newest AS (
    SELECT session_id FROM agent.sessions WHERE %(user)s::text IS NULL OR user_id = %(user)s
    ORDER BY last_active_at DESC LIMIT %(limit)s)
SELECT s.* FROM agent.session_status s JOIN newest USING (session_id) ORDER BY s.last_active_at DESC
