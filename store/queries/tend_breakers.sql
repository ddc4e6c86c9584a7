-- No breaker is open beyond its time without one of its tasks being tried.
SELECT * FROM agent.tend_breakers()
