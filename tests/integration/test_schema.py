"""schema.sql is the truth: migrating gets there, and any number of processes may migrate at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

import psycopg
import pytest

from agent.engine import migrate as migrate_dbos
from store import database, schema
from store.errors import Unreachable, Unusable

SHAPE = {
    "columns": "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns"
    " WHERE table_schema = 'agent'",
    "indexes": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'agent'",
    "constraints": "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = 'agent'::regnamespace",
    "functions": "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'agent'::regnamespace",
    "views": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'agent'",
    "triggers": "SELECT pg_get_triggerdef(oid) FROM pg_trigger"
    " WHERE NOT tgisinternal AND tgfoid::regproc::text LIKE 'agent.%'",
    "options": "SELECT relname, reloptions::text FROM pg_class"
    " WHERE relnamespace = 'agent'::regnamespace AND relkind = 'r'",
}


def test_migrations_and_schema_give_the_same_database(new_database: Callable[..., str]) -> None:
    migrated, written = new_database(), new_database()
    for url in (migrated, written):
        migrate_dbos(url)
    schema.migrate(migrated)
    with psycopg.connect(written) as connection:
        connection.execute(schema.APPLIED.encode())
        connection.execute(files("store").joinpath("schema.sql").read_bytes())
    for name in SHAPE:
        assert shape(migrated, name) == shape(written, name), name
        assert shape(migrated, name), name


def test_migrating_again_changes_nothing(url: str) -> None:
    assert schema.is_current(url)
    assert schema.migrate(url) == []


def test_many_processes_may_migrate_at_once(new_database: Callable[..., str]) -> None:
    url = new_database()
    migrate_dbos(url)
    with ThreadPoolExecutor(8) as threads:
        applied = [name for names in threads.map(schema.migrate, [url] * 8) for name in names]
    assert applied == [migration.name for migration in schema.migrations()]


def test_an_unreachable_database_is_one_sentence() -> None:
    with pytest.raises(Unreachable, match=r"^Postgres cannot be reached: .*Check PERDURE_DATABASE_URL\.$"):
        database.check("postgresql://nobody@127.0.0.1:9/none?connect_timeout=2")


def test_a_url_that_is_none_is_one_sentence() -> None:
    with pytest.raises(Unusable, match="PERDURE_DATABASE_URL is no libpq URL"):
        database.check("postgresql://host:not-a-port/x?y")


def test_a_server_that_is_too_old_is_one_sentence(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "OLDEST_SERVER", 990000)
    with pytest.raises(Unusable, match="Postgres 18 is too old: Perdure needs Postgres 99 or newer"):
        database.check(url)


def test_a_role_that_may_not_create_a_schema_is_one_sentence(new_database: Callable[..., str]) -> None:
    url = new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(Unusable, match=r"The role guest may not create a schema.*GRANT CREATE ON DATABASE"):
        database.check(url.replace("postgres@", "guest@"))


def shape(url: str, name: str) -> list[tuple[str, ...]]:
    with psycopg.connect(url) as connection:
        return sorted(connection.execute(SHAPE[name]).fetchall(), key=repr)
