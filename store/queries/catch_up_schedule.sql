-- What is owed of the schedule's past will run, and nothing else of it; or somebody else has seen to it.
SELECT agent.catch_up(%(name)s, %(overdue)s, %(owed)s, %(following)s)
