-- Nothing changes; the session as one document.
SELECT agent.export_session(%(session)s)
