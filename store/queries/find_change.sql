-- Nothing changes; says whether this very call has already changed the file.
SELECT EXISTS (
    SELECT 1 FROM agent.files f WHERE f.session_id = %(session)s AND f.path = %(path)s AND f.key = %(key)s)
