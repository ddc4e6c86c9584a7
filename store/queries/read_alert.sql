-- Nothing changes; one alert.
SELECT * FROM agent.alerts WHERE alert_id = %(alert)s
