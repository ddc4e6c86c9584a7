-- The schedule exists and DBOS keeps its time; or nothing was written.
SELECT agent.schedule(%(name)s, %(agent)s, %(input)s, %(session)s, %(user)s, %(cron)s, %(at)s, %(timezone)s, %(missed)s,
    %(pattern)s, %(first_at)s)
