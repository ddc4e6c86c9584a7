-- Nothing changes; the newest that covers no message after the given position.
SELECT * FROM agent.compactions WHERE session_id = %(session)s AND through <= %(through)s ORDER BY through DESC LIMIT 1
