-- The session's status says how much of its state the last context held.
UPDATE agent.sessions SET coherence = %(score)s, coherence_note = %(note)s WHERE session_id = %(session)s
