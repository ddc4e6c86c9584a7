-- Nothing changes; of these digests of session ids, those that belong to a session.
SELECT d.digest FROM (
    SELECT left(encode(sha256(convert_to(session_id, 'UTF8')), 'hex'), 24) AS digest FROM agent.sessions) d
WHERE d.digest = ANY (%(digests)s)
