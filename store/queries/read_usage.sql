-- Nothing changes; sums since a day, by one of the things that have them; days newest first, the others dearest first.
SELECT CASE %(by)s WHEN 'task' THEN u.task_id WHEN 'session' THEN u.session_id WHEN 'user' THEN u.user_id
        WHEN 'agent' THEN u.agent WHEN 'model' THEN u.model WHEN 'purpose' THEN u.purpose ELSE u.day::text END AS name,
    sum(u.requests)::bigint AS requests, sum(u.unpriced_requests)::bigint AS unpriced_requests,
    sum(u.input_tokens)::bigint AS input_tokens, sum(u.output_tokens)::bigint AS output_tokens,
    sum(u.cache_read_tokens)::bigint AS cache_read_tokens, sum(u.cache_write_tokens)::bigint AS cache_write_tokens,
    sum(u.cost_usd) AS cost_usd
FROM agent.usage u
WHERE u.day >= %(since)s::date AND (%(user)s::text IS NULL OR u.user_id = %(user)s)
  AND (%(session)s::text IS NULL OR u.session_id = %(session)s)
GROUP BY 1
ORDER BY CASE WHEN %(by)s = 'day' THEN max(u.day) END DESC NULLS LAST, sum(u.cost_usd) DESC NULLS LAST,
    sum(u.input_tokens + u.output_tokens) DESC, 1 LIMIT %(limit)s
