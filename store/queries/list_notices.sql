-- Nothing changes; oldest first.
SELECT n.* FROM agent.notices n
WHERE (%(session)s::text IS NULL OR n.session_id = %(session)s) AND n.notice_id > %(after)s
  AND (%(user)s::text IS NULL OR EXISTS (
      SELECT 1 FROM agent.sessions s WHERE s.session_id = n.session_id AND s.user_id = %(user)s))
ORDER BY n.notice_id LIMIT %(limit)s
