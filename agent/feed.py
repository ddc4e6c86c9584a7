"""Following a session: everything that happens in it, once and in order, from any place on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from store import stream
from store.bell import Bell
from store.database import Database
from store.stream import Happening, Place

LOOK_SECONDS = 300.0
"""How often one looks although nothing rang. The bell rings by itself when its line was lost; this is for the rest."""


async def follow(
    database: Database, bell: Bell, session: str, place: Place, *, seconds: float | None = None
) -> AsyncIterator[Happening]:
    """Until the bell is taken down, or the time is over and all is told. A reader takes what it can bear: nothing is
    kept for it but its place."""
    now = asyncio.get_running_loop().time
    end = None if seconds is None else now() + seconds
    with bell.ear(session) as ear:
        while bell.is_up:
            is_more = False
            # A reader that leaves in mid-query would cost the pool its connection.
            rows = await asyncio.shield(database.run(stream.read_stream(session, place)))
            for happening in stream.happenings(rows, place):
                place, is_more = happening.place, True
                yield happening
            if is_more:
                continue
            if end is not None and now() >= end:
                return
            await ear.heard(LOOK_SECONDS if end is None else max(end - now(), 0))
