-- No task belongs to a worker that is dead: each is queued again as a suspect, or convicted if it was alone.
SELECT * FROM agent.adopt_tasks(%(me)s, %(gone)s, %(judge_silence)s, %(waits)s, %(isolate_after)s, %(limit)s, %(window)s)
