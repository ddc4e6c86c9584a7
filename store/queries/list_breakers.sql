-- Nothing changes; what has crashed too often.
SELECT * FROM agent.breakers ORDER BY opened_at
