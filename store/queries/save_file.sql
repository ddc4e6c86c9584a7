-- The file has this content in the manifest, by the execution that owns the task; says whether that changed anything.
SELECT agent.save_file(%(task)s, %(owner)s, %(path)s, %(sha256)s, %(size)s, %(data)s, %(key)s) IS NOT NULL
