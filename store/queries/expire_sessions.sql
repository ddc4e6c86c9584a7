-- No session is open that nobody has touched for so long.
SELECT agent.expire_sessions(%(seconds)s)
