-- Nothing changes; in the order the steps began.
SELECT * FROM agent.step_log WHERE task_id = %(task)s AND step > %(after)s ORDER BY step LIMIT %(limit)s
