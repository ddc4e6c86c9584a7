-- The task waits until the breaker of the tool lets it try.
SELECT agent.wait_for_tool(%(task)s, %(owner)s, %(scope)s)
