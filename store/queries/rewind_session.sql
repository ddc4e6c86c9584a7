-- The session is back at a place; what is undone stays in the journal.
SELECT agent.rewind(%(session)s, %(to)s)
