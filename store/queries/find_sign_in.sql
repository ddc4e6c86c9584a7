-- Nothing changes; the hash of the key that a token stands for.
SELECT key_hash FROM agent.sign_ins WHERE hash = %(hash)s AND expires_at > clock_timestamp()
