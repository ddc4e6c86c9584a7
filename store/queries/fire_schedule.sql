-- The occurrence has its one task, was missed, or an alert says what stands in its way.
SELECT agent.fire(%(name)s, %(occurrence)s, %(following)s, %(run)s, %(owed)s, %(late_seconds)s)
