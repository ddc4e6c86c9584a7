-- The alert says whether it reached the outside.
SELECT agent.note_alert(%(alert)s, %(problem)s)
