-- The notice is acknowledged, and a correction counts from now on.
SELECT agent.acknowledge(%(session)s, %(notice)s, %(correction)s)
