"""The way to Postgres: an async pool for the service, a sync one for clients, one set of statements.

A lost connection is waited out, never reported: every statement is one transaction that may safely run
again, so a restart of Postgres costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import psycopg
from psycopg import errors as pg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from store.errors import REFUSALS, Unreachable, Unusable
from store.statement import Script, Statement

T = TypeVar("T")

OLDEST_SERVER = 150000
LONGEST_PAUSE = 5.0

Connection = psycopg.Connection[Any]

TRANSIENT = (
    PoolTimeout,
    pg.SerializationFailure,
    pg.DeadlockDetected,
    pg.ConnectionTimeout,
    pg.ReadOnlySqlTransaction,  # the server is no longer, or not yet, the primary
    pg.IdleInTransactionSessionTimeout,
)
STATEMENT_CANCELLED = "57014"
RECONNECT_SECONDS = 2.0
"""How long the pool goes on trying before it starts afresh; its pauses double, and must not grow long."""


def is_transient(error: BaseException) -> bool:
    """Whether running the same transaction again may succeed."""
    if isinstance(error, TRANSIENT):
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    state = error.sqlstate
    return state is None or (state != STATEMENT_CANCELLED and state[:2] in ("08", "53", "57"))


def explained(error: psycopg.Error) -> Exception:
    """Perdure's own refusals under their own names, everything else as it is."""
    kind = REFUSALS.get(error.sqlstate or "")
    if kind is None:
        return error
    return kind(error.diag.message_primary or str(error))


class Database:
    """The service's pool. `on_loss` is called when a connection was lost, before the next try.

    With `read_only`, Postgres itself refuses whatever would change something.
    """

    def __init__(
        self, url: str, *, size: int = 10, on_loss: Callable[[], None] | None = None, read_only: bool = False
    ) -> None:
        self.url = url
        self._on_loss = on_loss
        self._read_only = read_only
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[dict[str, Any]]] = AsyncConnectionPool(
            url,
            min_size=1,
            max_size=size,
            open=False,
            timeout=10,
            reconnect_timeout=RECONNECT_SECONDS,
            kwargs={"autocommit": True, "row_factory": dict_row, "application_name": "perdure"},
            configure=_forbid_writes if read_only else None,
        )

    async def __aenter__(self) -> Database:
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close(timeout=2)

    async def run(self, statement: Statement[T]) -> T:
        """Execute until Postgres has answered, however long it is away."""
        pause = 0.1
        while True:
            try:
                return await self.try_once(statement)
            except Unreachable:
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, LONGEST_PAUSE)

    async def play(self, script: Script[T]) -> T:
        """Each statement once, in its own transaction."""
        given: Any = None
        while True:
            try:
                statement = script.send(given)
            except StopIteration as end:
                return cast(T, end.value)
            given = await self.try_once(statement)

    async def try_once(self, statement: Statement[T]) -> T:
        try:
            async with self._pool.connection() as connection:
                cursor = await connection.execute(statement.text, statement.params)
                return statement.read(await cursor.fetchall() if cursor.description else [])
        except psycopg.Error as error:
            if is_transient(error) and not (self._read_only and isinstance(error, pg.ReadOnlySqlTransaction)):
                await self._tell_of_loss()
                raise Unreachable(f"Postgres does not answer: {_first_line(error)}") from error
            raise explained(error) from error

    async def _tell_of_loss(self) -> None:
        if self._on_loss is None:
            return
        # A thread of its own: while Postgres is away, all others may be waiting for it.
        with contextlib.suppress(Unusable), ThreadPoolExecutor(1) as thread:
            await asyncio.get_running_loop().run_in_executor(thread, self._on_loss)


async def _forbid_writes(connection: psycopg.AsyncConnection[dict[str, Any]]) -> None:
    await connection.execute("SET default_transaction_read_only = on")


class Link:
    """A client's own way to Postgres, usable from many threads; errors are reported, not waited out."""

    def __init__(self, url: str, *, size: int = 10) -> None:
        self.url = url
        self._pool: ConnectionPool[psycopg.Connection[dict[str, Any]]] = ConnectionPool(
            url,
            min_size=0,
            max_size=size,
            open=True,
            timeout=30,
            kwargs={"autocommit": True, "row_factory": dict_row, "application_name": "perdure-client"},
        )

    def close(self) -> None:
        self._pool.close()

    def run(self, statement: Statement[T]) -> T:
        try:
            with self._pool.connection() as connection:
                return run_on(connection, statement)
        except psycopg.Error as error:
            if is_transient(error):
                raise Unreachable(f"Postgres does not answer: {_first_line(error)}") from error
            raise

    def play(self, script: Script[T]) -> T:
        """Each statement once, in its own transaction."""
        given: Any = None
        while True:
            try:
                statement = script.send(given)
            except StopIteration as end:
                return cast(T, end.value)
            given = self.run(statement)


def run_on(connection: Connection, statement: Statement[T]) -> T:
    """Execute inside the caller's own transaction, which the caller commits."""
    try:
        with connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(statement.text, statement.params)
            return statement.read(cursor.fetchall() if cursor.description else [])
    except psycopg.Error as error:
        translated = explained(error)
        if translated is error:
            raise
        raise translated from error


def connect(url: str) -> Connection:
    """One connection, or one sentence that says why there is none."""
    try:
        return psycopg.connect(url, connect_timeout=10, autocommit=True)
    except psycopg.OperationalError as error:
        raise Unreachable(f"Postgres cannot be reached: {_first_line(error)}. Check PERDURE_DATABASE_URL.") from error
    except psycopg.ProgrammingError as error:
        # The driver's own words would show the password.
        raise Unusable(
            "PERDURE_DATABASE_URL is no libpq URL: postgresql://user:password@host:port/database."
        ) from error


def check(url: str) -> int:
    """The server's version, or one sentence that says why this database cannot be used."""
    with connect(url) as connection:
        version = connection.info.server_version
        if version < OLDEST_SERVER:
            raise Unusable(
                f"Postgres {version // 10000} is too old: Perdure needs Postgres {OLDEST_SERVER // 10000} or newer."
            )
        row = connection.execute(
            "SELECT has_database_privilege(current_database(), 'CREATE'), current_user, current_database(),"
            " to_regnamespace('agent') IS NOT NULL AND to_regnamespace('dbos') IS NOT NULL"
        ).fetchone()
    assert row is not None
    may_create, user, database, exists = row
    if not may_create and not exists:
        raise Unusable(
            f"The role {user} may not create a schema in {database}: run"
            f" GRANT CREATE ON DATABASE {database} TO {user}, or give another PERDURE_DATABASE_URL."
        )
    return version


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
