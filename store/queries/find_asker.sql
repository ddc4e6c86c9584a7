-- Nothing changes; the newest task of a session that asked about a call, answered or not.
SELECT task_id FROM agent.approvals WHERE session_id = %(session)s AND call_id = %(call)s
ORDER BY requested_at DESC LIMIT 1
