-- The session of the document is here, idle.
SELECT agent.import_session(%(document)s, %(session)s, %(user)s)
