-- The answer is recorded once; the continuing task is accepted when nothing is left to answer.
SELECT agent.decide(%(task)s, %(call)s, %(decision)s, %(note)s, %(arguments)s)
