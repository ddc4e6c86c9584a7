-- The session exists, with this agent and user; says whether it is new.
SELECT agent.make_session(%(session)s, %(agent)s, %(user)s, %(title)s)
