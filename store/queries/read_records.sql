-- Nothing changes; the steps of a task as DBOS has them on record.
SELECT function_id AS step, function_name AS name, output, error, serialization
FROM dbos.operation_outputs WHERE workflow_uuid = %(task)s ORDER BY function_id
