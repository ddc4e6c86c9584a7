-- The key can be used from now on; none by that name was there before.
INSERT INTO agent.keys (name, hash, user_id, is_read_only) VALUES (%(name)s, %(hash)s, %(user)s, %(read_only)s)
ON CONFLICT (name) DO NOTHING RETURNING name
