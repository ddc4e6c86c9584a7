-- Nothing changes; oldest first.
SELECT * FROM agent.compactions WHERE session_id = %(session)s ORDER BY at
