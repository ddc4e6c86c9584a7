-- No session waits for a budget that has room.
SELECT agent.release_budgets()
