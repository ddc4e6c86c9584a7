-- Long work has a checkpoint that was written within the minute; work done long ago has none.
SELECT agent.tend_checkpoints(%(me)s)
