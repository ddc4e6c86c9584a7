-- The decision belongs to this call of this task, if it was nobody's.
SELECT agent.honour(%(task)s, %(owner)s, %(asked_by)s, %(asked_call)s, %(call)s)
