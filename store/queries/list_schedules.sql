-- Nothing changes; those that run next first.
SELECT * FROM agent.schedule_status WHERE %(name)s::text IS NULL OR name = %(name)s ORDER BY next_at NULLS LAST, name
