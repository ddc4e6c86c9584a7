"""Everything that touches Postgres. The only place with SQL, and the only importer of psycopg."""
