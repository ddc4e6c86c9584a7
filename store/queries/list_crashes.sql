-- Nothing changes; which tasks were on workers that died, newest first.
SELECT c.worker_id, c.task_id, c.session_id, c.agent, c.tool, c.is_blamed, c.at
FROM agent.crashes c ORDER BY c.at DESC LIMIT %(limit)s
