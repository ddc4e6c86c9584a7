-- The effect is on the ledger as started; says whether an earlier start has no recorded end.
SELECT agent.start_effect(%(task)s, %(owner)s, %(worker)s, %(key)s, %(call)s, %(tool)s, %(arguments)s, %(policy)s)
