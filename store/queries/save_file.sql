-- The file has this content in the manifest, or with none is not there, by the execution that owns the task; says whether that changed anything.
SELECT agent.save_file(%(task)s, %(owner)s, %(path)s, %(sha256)s::bytea, %(size)s::integer, %(data)s::bytea, %(key)s) IS NOT NULL
