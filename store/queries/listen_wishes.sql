-- From now on, this connection is told of every session of whose running task something is asked.
LISTEN perdure_wish
