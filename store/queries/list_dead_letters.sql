-- Nothing changes; newest first.
SELECT * FROM agent.dead_letters ORDER BY at DESC
