-- The session is open, paused or closed, and in the hands of the person, if one is named.
SELECT agent.set_mode(%(session)s, %(mode)s, %(person)s)
