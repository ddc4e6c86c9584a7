-- The key is worth nothing, and neither is any sign-in with it.
UPDATE agent.keys SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE name = %(name)s RETURNING name
