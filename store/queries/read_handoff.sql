-- Nothing changes; the newest, if there is one.
SELECT * FROM agent.handoffs WHERE session_id = %(session)s ORDER BY handoff_id DESC LIMIT 1
