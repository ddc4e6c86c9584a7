-- Nothing changes; the open alert of this key, if there is one.
SELECT * FROM agent.alerts WHERE key = %(key)s AND resolved_at IS NULL
