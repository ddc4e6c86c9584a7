-- Messages through the cut are represented by the summary; the originals are untouched.
SELECT agent.record_compaction(%(task)s, %(owner)s, %(through)s, %(before)s, %(after)s, %(strategy)s, %(summary)s,
    %(score)s::real, %(note)s)
