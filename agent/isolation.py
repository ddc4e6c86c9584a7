"""Suspects are tried one at a time, each alone in a process of its own, so that a death tells who was to blame.

The processes are forked by `agent.court`, which is started when there is a suspect and ends with its worker.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence

from agent.log import log
from agent.process import host, new_worker_id
from store import supervision
from store.database import Database
from store.types import WorkerId

END_SECONDS = 5.0
"""Beyond its drain, what a process on trial has for its last words."""
QUIET_SECONDS = 10.0
"""After the last trial, how long the next suspect is looked for at every glance."""


class Isolator:
    """The worker's side: has suspects tried while there are any."""

    def __init__(
        self, database: Database, *, version: str, beat_seconds: float, on_end: Callable[[str], Awaitable[None]]
    ) -> None:
        self._database = database
        self._version = version
        self._beat_seconds = beat_seconds
        self._on_end = on_end
        self._court: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._active_until = 0.0
        self._is_stopping = False
        self._stopped_at = 0.0
        self._on_trial: set[WorkerId] = set()

    @property
    def on_trial(self) -> Sequence[WorkerId]:
        return tuple(self._on_trial)

    @property
    def is_active(self) -> bool:
        return bool(self._on_trial) or asyncio.get_running_loop().time() < self._active_until

    def expect(self) -> None:
        """Suspects may be there soon."""
        self._active_until = asyncio.get_running_loop().time() + QUIET_SECONDS

    async def turn(self) -> None:
        """Have the next suspect tried, if there is one and nobody else is being tried."""
        if self._is_stopping:
            return
        child = new_worker_id()
        claim = supervision.claim_trial(
            child, host=host(), version=self._version, beat_seconds=max(self._beat_seconds, 5)
        )
        if not await self._database.try_once(claim):
            return
        self.expect()
        court = await self._open_court()
        assert court.stdin is not None
        self._on_trial.add(child)
        court.stdin.write(json.dumps({"worker": child, "url": self._database.url}).encode() + b"\n")
        await court.stdin.drain()

    def stop(self) -> None:
        """Those on trial are stopped as planned, and nobody else is tried."""
        self._is_stopping = True
        self._stopped_at = asyncio.get_running_loop().time()
        if self._court is not None and self._court.stdin is not None:
            self._court.stdin.close()

    async def end(self, drain_seconds: float) -> None:
        """Wait for those who were on trial when `stop` was called: they drain like everybody, and end by themselves."""
        if self._listening is not None:
            left = self._stopped_at + drain_seconds + END_SECONDS - asyncio.get_running_loop().time()
            await asyncio.wait({self._listening}, timeout=max(left, 0))

    async def _open_court(self) -> asyncio.subprocess.Process:
        if self._court is None or self._court.returncode is not None:
            self._court = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "agent.court",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            self._listening = asyncio.create_task(self._listen(self._court))
        return self._court

    async def _listen(self, court: asyncio.subprocess.Process) -> None:
        assert court.stdout is not None
        async for line in court.stdout:
            told = json.loads(line)
            self._on_trial.discard(told["worker"])
            self.expect()
            if told["ended"] is not None:
                log.warning("worker %s, which tried a suspect, ended: %s", told["worker"], told["ended"])
                try:
                    end = supervision.note_end(told["worker"], told["ended"], is_hang=told["is_hang"])
                    await self._database.run(end)
                    await self._on_end(told["worker"])
                except Exception as error:
                    log.error("the end of a trial could not be noted; it is judged later", exc_info=error)
        self._on_trial.clear()  # nobody watches them any more
