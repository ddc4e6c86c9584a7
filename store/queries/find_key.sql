-- The living key with this hash, if there is one, is known to have been used within the last minute.
WITH noted AS (
    UPDATE agent.keys SET last_used_at = clock_timestamp()
    WHERE hash = %(hash)s AND revoked_at IS NULL
      AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute'))
SELECT name, hash, user_id, is_read_only FROM agent.keys WHERE hash = %(hash)s AND revoked_at IS NULL
