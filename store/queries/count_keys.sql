-- Nothing changes; how many keys were made, and how many of them can be used.
SELECT count(*) AS made, count(*) FILTER (WHERE revoked_at IS NULL) AS living FROM agent.keys
