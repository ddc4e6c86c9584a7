"""What somebody wants of a running task: a pause, its end. Postgres tells when there is something to ask about."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg

from store.database import connect
from store.errors import Unreachable
from store.statement import Statement, query, value
from store.types import SessionId, TaskId, Wish

LOOK_SECONDS = 0.5
"""How often it is seen whether listening is over; costs no query."""


def read_wish(task: TaskId) -> Statement[Wish | None]:
    return Statement(query("read_wish"), {"task": task}, value)


def hear(url: str, is_over: Callable[[], bool]) -> Iterator[SessionId | None]:
    """Sessions of which something is asked, when it is; nothing instead of one, where some may have been missed."""
    try:
        with connect(url) as connection:
            connection.execute(query("listen_wishes"))
            yield None
            while not is_over():
                for heard in connection.notifies(timeout=LOOK_SECONDS):
                    yield SessionId(heard.payload)
    except psycopg.Error as error:
        raise Unreachable(f"Postgres does not answer: {error}") from error
