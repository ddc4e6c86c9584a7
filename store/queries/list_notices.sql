-- Nothing changes; oldest first.
SELECT * FROM agent.notices WHERE %(session)s::text IS NULL OR session_id = %(session)s ORDER BY notice_id
