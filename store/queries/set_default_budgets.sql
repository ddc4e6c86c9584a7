-- The budgets of whoever has none of their own are these.
SELECT agent.set_default_budgets(%(given)s::jsonb)
