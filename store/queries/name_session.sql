-- The session has this title; one that only stands in for a missing title replaces none.
UPDATE agent.sessions SET title = CASE WHEN %(only_if_missing)s THEN coalesce(title, %(title)s) ELSE %(title)s END
WHERE session_id = %(session)s RETURNING session_id
