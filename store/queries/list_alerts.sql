-- Nothing changes; newest first.
SELECT * FROM agent.alerts WHERE %(all)s OR resolved_at IS NULL ORDER BY alert_id DESC LIMIT 200
