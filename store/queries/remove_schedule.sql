-- The schedule is gone and fires no more; tasks it has enqueued stay.
SELECT agent.unschedule(%(name)s)
