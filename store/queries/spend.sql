-- What these requests for a task used and cost is added to its sums.
SELECT agent.spend(%(task)s::text, %(items)s::jsonb)
