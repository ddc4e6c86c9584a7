-- One alert of this key is open, and counts how often it happened.
SELECT agent.raise_alert(%(key)s, %(what)s, %(did)s, %(advice)s)
