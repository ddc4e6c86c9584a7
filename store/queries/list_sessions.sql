-- Nothing changes; last active first.
SELECT * FROM agent.session_status WHERE %(user)s::text IS NULL OR user_id = %(user)s
ORDER BY last_active_at DESC LIMIT %(limit)s
