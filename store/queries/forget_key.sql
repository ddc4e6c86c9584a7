-- A key that was revoked is gone, and its name is free.
DELETE FROM agent.keys WHERE name = %(name)s AND revoked_at IS NOT NULL RETURNING name
