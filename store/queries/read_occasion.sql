-- Nothing changes; the handoff of one occasion, if it is written.
SELECT * FROM agent.handoffs WHERE occasion = %(occasion)s
