-- This execution is known to run the task, and where its history ends is fixed for good.
SELECT agent.open_task(%(task)s, %(owner)s, %(worker)s)
