-- The session is the agent's again, with the person's note in its checkpoint.
SELECT agent.give_session_back(%(session)s, %(note)s)
