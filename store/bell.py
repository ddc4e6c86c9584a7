"""Rings when something happens in a session: one LISTEN for the whole process, however many follow."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator

import psycopg

CHANNEL = "perdure"
LONGEST_PAUSE = 5.0
PROOF_SECONDS = 10.0
"""How long the line may be silent before it is tried."""


class Ear:
    """Remembers that the bell rang until somebody asks. Nothing is queued for a slow listener."""

    def __init__(self) -> None:
        self._rang = asyncio.Event()

    def ring(self) -> None:
        self._rang.set()

    async def heard(self, seconds: float) -> bool:
        """Whether it has rung since the last time, waiting for it at most so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._rang.wait(), seconds)
        rang = self._rang.is_set()
        self._rang.clear()
        return rang


class Bell:
    def __init__(self, url: str) -> None:
        self._url = url
        self.is_up = False
        self._ears: defaultdict[str, set[Ear]] = defaultdict(set)
        self._everywhere: set[Ear] = set()
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Bell:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start(self) -> None:
        self.is_up = True
        self._listening = asyncio.create_task(self._listen())

    async def stop(self) -> None:
        """Rings a last time, so that everybody sees that it is down."""
        self.is_up = False
        self._ring_all()
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening

    @contextlib.contextmanager
    def ear(self, session: str | None = None) -> Iterator[Ear]:
        """For one session, or for all of them."""
        ear = Ear()
        ears = self._everywhere if session is None else self._ears[session]
        ears.add(ear)
        try:
            yield ear
        finally:
            ears.discard(ear)
            if session is not None and not ears:
                self._ears.pop(session, None)

    def _ring(self, session: str) -> None:
        for ear in (*self._ears.get(session, ()), *self._everywhere):
            ear.ring()

    def _ring_all(self) -> None:
        for ear in {*self._everywhere, *(ear for ears in self._ears.values() for ear in ears)}:
            ear.ring()

    async def _listen(self) -> None:
        pause = 0.1
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, connect_timeout=10, application_name="perdure-bell"
                )
                async with connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._ring_all()  # what happened while nobody listened is read now
                    pause = 0.1
                    while True:
                        async for heard in connection.notifies(timeout=PROOF_SECONDS):
                            self._ring(heard.payload)
                        await connection.execute("SELECT 1")  # a line that is dead says nothing either
            except psycopg.Error:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
