-- No question is open beyond its time.
SELECT agent.expire_approvals()
