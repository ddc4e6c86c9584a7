-- No alert of this key is open.
SELECT agent.resolve_alert(%(key)s)
