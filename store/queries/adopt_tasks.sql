-- No task belongs to a worker that is dead: each is queued again, with one more crash counted.
SELECT * FROM agent.adopt_tasks(%(me)s, %(gone)s, %(judge_silence)s)
