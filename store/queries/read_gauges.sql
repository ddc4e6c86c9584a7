-- Nothing changes; what the database says of itself now, at a bounded price.
SELECT agent.gauges()
