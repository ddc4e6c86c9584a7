"""Bringing a database to this release's schema. DBOS's own migrations must have run before."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files

from psycopg import errors as pg

from store.database import connect
from store.errors import Unusable

LOCK = 7_316_552_104
"""The advisory lock under which one process migrates and the others wait."""

APPLIED = """
CREATE SCHEMA IF NOT EXISTS agent;
CREATE TABLE IF NOT EXISTS agent.migrations (
    number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())
"""

VECTOR = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector' AND installed_version IS NULL) THEN
        CREATE EXTENSION vector;
    END IF;
END $$
"""


@dataclass(frozen=True)
class Migration:
    number: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    found: list[Migration] = []
    for file in files("store").joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            found.append(Migration(int(file.name[:4]), file.name.removesuffix(".sql"), file.read_text("utf-8")))
    return sorted(found, key=lambda migration: migration.number)


def is_current(url: str) -> bool:
    """Whether nothing is left to do, asked without taking a lock."""
    return last_applied(url) >= migrations()[-1].number


def last_applied(url: str) -> int:
    """The number of the newest migration this database has seen; 0 when there is no schema at all."""
    with connect(url) as connection:
        try:
            row = connection.execute("SELECT max(number) FROM agent.migrations").fetchone()
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return 0
        return row[0] if row is not None and row[0] is not None else 0


def vector_version(url: str) -> str | None:
    """Of pgvector, where this database has it."""
    with connect(url) as connection:
        row = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
        return str(row[0]) if row is not None else None


def migrate(url: str) -> list[str]:
    """Apply what is missing, each migration in its own transaction; the names of those applied.

    pgvector is made ready where the server has it and the role may; nothing depends on it.
    """
    applied: list[str] = []
    with connect(url) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        try:
            with connection.transaction():
                connection.execute(APPLIED)
            with suppress(pg.InsufficientPrivilege), connection.transaction():
                connection.execute(VECTOR)
            done = {row[0] for row in connection.execute("SELECT number FROM agent.migrations").fetchall()}
            for migration in migrations():
                if migration.number in done:
                    continue
                with connection.transaction():
                    connection.execute(migration.sql.encode())
                    connection.execute(
                        "INSERT INTO agent.migrations (number, name) VALUES (%s, %s)",
                        (migration.number, migration.name),
                    )
                applied.append(migration.name)
        except pg.InsufficientPrivilege as error:
            raise Unusable(f"The database role may not migrate: {error.diag.message_primary}.") from error
        finally:
            connection.execute("SELECT pg_advisory_unlock(%s)", (LOCK,))
    return applied
