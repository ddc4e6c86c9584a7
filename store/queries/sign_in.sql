-- The token stands for the key until its time is over; those whose time is over are gone.
WITH swept AS (DELETE FROM agent.sign_ins WHERE expires_at < clock_timestamp())
INSERT INTO agent.sign_ins (hash, key_hash, expires_at)
VALUES (%(hash)s, %(key)s, clock_timestamp() + make_interval(secs => %(seconds)s))
