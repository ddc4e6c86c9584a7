-- The task has ended with what it did on record, and a fresh one has its place.
SELECT agent.hand_over(%(task)s, %(owner)s, %(difference)s, %(messages)s)
