-- The notice says whether it reached the outside.
SELECT agent.note_delivery(%(notice)s, %(problem)s)
