-- A new session has this one's past up to a place.
SELECT agent.fork(%(session)s, %(at)s, %(new)s, %(title)s)
