"""Every row there is, as text."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg


def every_row(db: psycopg.Connection) -> Iterator[tuple[str, str]]:
    tables = db.execute(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname IN ('dbos', 'agent')"
    ).fetchall()
    assert len(tables) > 10
    for (table,) in tables:
        for (row,) in db.execute(f"SELECT to_jsonb(t)::text FROM {table} t").fetchall():
            yield table, row
