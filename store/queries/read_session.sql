-- Nothing changes; at most one row.
SELECT * FROM agent.session_status WHERE session_id = %(session)s
