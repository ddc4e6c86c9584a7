-- Nothing changes; what happened in a session after an event, then what the model has said so far, in one snapshot.
(SELECT j.seq, NULL AS attempt, NULL::integer AS n, j.task_id, j.kind, j.data, j.at,
    CASE j.kind WHEN 'model.responded' THEN agent.as_json(o.output)->'v'->'parts'
                WHEN 'tool.finished' THEN agent.as_json(o.output)->'output' END AS detail
 FROM agent.journal j
 LEFT JOIN dbos.operation_outputs o
   ON j.kind IN ('model.responded', 'tool.finished') AND o.workflow_uuid = j.task_id
  AND o.function_id = (j.data->>'step')::integer
 WHERE j.session_id = %(session)s AND j.seq > %(after)s ORDER BY j.seq LIMIT %(limit)s)
UNION ALL
(SELECT NULL, d.attempt, d.n, d.task_id, 'token', d.data, NULL, NULL
 FROM agent.deltas d WHERE d.session_id = %(session)s AND (d.attempt IS DISTINCT FROM %(attempt)s OR d.n > %(n)s)
 ORDER BY d.task_id, d.attempt, d.n)
