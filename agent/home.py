"""Where the data is: a database that was given, or one that lives under PERDURE_HOME."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from agent.config import Settings
from store.embedded import EmbeddedPostgres


@dataclass(frozen=True)
class Home:
    url: str
    embedded: EmbeddedPostgres | None


def address(settings: Settings) -> str:
    """Where the database answers if it runs; nothing is started for that."""
    return settings.database_url or EmbeddedPostgres(settings.home).url


@contextlib.contextmanager
def open_home(settings: Settings) -> Iterator[Home]:
    """A database that is there while the block runs."""
    if settings.database_url is not None:
        yield Home(settings.database_url, None)
        return
    embedded = EmbeddedPostgres(settings.home)
    try:
        yield Home(embedded.start(), embedded)
    finally:
        embedded.release()
