-- Each agent can be enqueued for, under its newest description.
INSERT INTO agent.agents (name, description, model, tools, context_window)
SELECT name, description, model, tools, context_window
FROM jsonb_to_recordset(%(agents)s)
    AS given(name text, description text, model text, tools jsonb, context_window integer)
ON CONFLICT (name) DO UPDATE SET description = excluded.description, model = excluded.model, tools = excluded.tools,
    context_window = excluded.context_window, registered_at = now()
