-- Nothing changes; how many living workers serve the agent.
SELECT count(*) FROM agent.workers WHERE state = 'alive' AND %(agent)s = ANY (agents)
  AND beat_at > clock_timestamp() - make_interval(secs => 2 * beat_seconds)
