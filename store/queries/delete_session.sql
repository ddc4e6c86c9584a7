-- No row of the session is left.
SELECT agent.delete_session(%(session)s)
