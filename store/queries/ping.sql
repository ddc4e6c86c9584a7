-- Nothing changes; Postgres answers.
SELECT 1
