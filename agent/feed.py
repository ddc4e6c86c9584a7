"""Following a session: everything that happens in it, once and in order, from any place on."""

from __future__ import annotations

from collections.abc import AsyncIterator

from store import stream
from store.bell import Bell
from store.database import Database
from store.stream import Happening, Place

LOOK_SECONDS = 15.0
"""How often one looks although nothing rang: a lost notification costs time, never an event."""


async def follow(database: Database, bell: Bell, session: str, place: Place) -> AsyncIterator[Happening]:
    """Until the bell is taken down. A reader takes what it can bear: nothing is kept for it but its place."""
    with bell.ear(session) as ear:
        while bell.is_up:
            is_more = False
            rows = await database.run(stream.read_stream(session, place))
            for happening in stream.happenings(rows, place):
                place, is_more = happening.place, True
                yield happening
            if not is_more:
                await ear.heard(LOOK_SECONDS)
