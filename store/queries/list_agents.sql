-- Nothing changes; by name.
SELECT name, description, model, tools, context_window FROM agent.agents
WHERE %(after)s::text IS NULL OR name COLLATE "C" > %(after)s COLLATE "C" ORDER BY name COLLATE "C" LIMIT %(limit)s
