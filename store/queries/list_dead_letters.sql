-- Nothing changes; newest first.
SELECT d.* FROM agent.dead_letters d
WHERE (%(user)s::text IS NULL OR EXISTS (
      SELECT 1 FROM agent.tasks t WHERE t.task_id = d.task_id AND t.user_id = %(user)s))
  AND (%(moment)s::timestamptz IS NULL OR (d.at, d.task_id COLLATE "C") < (%(moment)s, %(after)s::text COLLATE "C"))
ORDER BY d.at DESC, d.task_id COLLATE "C" DESC LIMIT %(limit)s
