-- The task exists, is journaled and will run; or nothing was written.
SELECT agent.enqueue(%(agent)s::text, %(input)s::text, session_id => %(session)s::text, user_id => %(user)s::text,
    idempotency_key => %(key)s::text, when_busy => %(when_busy)s::text, traceparent => %(traceparent)s::text)
