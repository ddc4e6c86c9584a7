-- Each agent can be enqueued for, under its newest description.
INSERT INTO agent.agents (name, description, model, tools)
SELECT name, description, model, tools
FROM jsonb_to_recordset(%(agents)s) AS given(name text, description text, model text, tools jsonb)
ON CONFLICT (name) DO UPDATE SET description = excluded.description, model = excluded.model, tools = excluded.tools,
    registered_at = now()
