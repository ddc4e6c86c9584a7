-- What these requests for a task used and cost is added to its sums; whose agent it is.
SELECT t.agent, agent.spend(t.task_id, %(items)s::jsonb) FROM agent.tasks t WHERE t.task_id = %(task)s
