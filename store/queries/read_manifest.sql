-- Nothing changes; the files of a session as they should be.
SELECT m.path, m.sha256, m.size FROM agent.manifest(%(session)s) m ORDER BY m.path
