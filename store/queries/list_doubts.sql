-- Nothing changes; effects whose end nobody recorded, oldest first.
SELECT * FROM agent.in_doubt WHERE %(session)s::text IS NULL OR session_id = %(session)s ORDER BY started_at
