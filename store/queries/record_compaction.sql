-- What the request left out through the cut, behind a summary or without one, is on record; the originals are untouched.
SELECT agent.record_compaction(%(task)s, %(owner)s, %(through)s, %(before)s, %(after)s, %(strategy)s, %(summary)s,
    %(score)s::real, %(note)s)
