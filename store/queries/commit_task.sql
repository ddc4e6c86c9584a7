-- The task has its outcome and the session its messages; a second commit changes nothing.
SELECT agent.commit_task(%(task)s, %(owner)s, %(outcome)s, %(output)s, %(error)s, %(messages)s, %(tokens)s, %(questions)s)
