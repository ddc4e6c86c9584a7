-- The pieces of answers can be followed, unless their task is no longer this execution's.
SELECT agent.tell(%(pieces)s)
