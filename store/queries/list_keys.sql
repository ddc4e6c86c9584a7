-- Nothing changes; by name.
SELECT name, user_id, is_read_only, created_at, last_used_at, revoked_at FROM agent.keys ORDER BY name
