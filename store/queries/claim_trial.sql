-- At most one suspect is on trial, and this child is known to try it.
SELECT agent.claim_trial(%(child)s, %(host)s, %(version)s, %(beat_seconds)s)
