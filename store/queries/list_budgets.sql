-- Nothing changes; those for all first, which say nothing of what is spent.
SELECT b.scope, b.name, b.period, b.cost_usd, b.tokens, o.spent_usd, o.spent_tokens, coalesce(o.is_used_up, false) AS is_used_up
FROM agent.budgets b
LEFT JOIN LATERAL agent.budgets_of(b.scope, b.name) o ON o.period = b.period
WHERE (%(scope)s::text IS NULL OR b.scope = %(scope)s) AND (%(name)s::text IS NULL OR b.name = %(name)s)
ORDER BY b.name <> '', b.scope, b.name COLLATE "C", b.period
