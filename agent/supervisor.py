"""Beside the work: beats, notices dead workers, and gives their tasks to the living."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from agent import engine, process
from agent.log import log
from store import workers
from store.database import Database
from store.errors import Unreachable
from store.types import TaskId, WorkerId, WorkerRow

GLANCE_SECONDS = 0.5
"""How often the processes of this machine's other workers are looked at; costs no query."""


LOST_SECONDS = 60.0
"""A claim that has not begun to run for so long never will; a busy worker may need a while to begin many."""


def new_worker_id() -> WorkerId:
    return WorkerId(f"{process.host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")


class Supervisor:
    """Keeps one worker known as alive. `worker` changes only when others have declared it dead."""

    def __init__(self, database: Database, *, version: str, beat_seconds: float) -> None:
        self.worker = new_worker_id()
        self._database = database
        self._version = version
        self._beat_seconds = beat_seconds
        self._neighbours: list[WorkerRow] = []
        self._last_beat = 0.0
        self._suspects: set[TaskId] = set()
        self._is_cut_off = False
        self._loop: asyncio.Task[None] | None = None

    async def register(self) -> None:
        known = process.identity()
        assert known is not None
        await self._database.run(
            workers.register_worker(
                self.worker,
                host=process.host(),
                pid=os.getpid(),
                process=known,
                version=self._version,
                beat_seconds=self._beat_seconds,
            )
        )
        self._last_beat = self._now()

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run(), name="perdure-supervisor")

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop

    async def _run(self) -> None:
        await self._turn(self._look_around)
        while True:
            await asyncio.sleep(min(GLANCE_SECONDS, self._beat_seconds))
            if self._now() - self._last_beat >= self._beat_seconds:
                await self._turn(self._beat)
            elif gone := self._gone():
                await self._turn(partial(self._adopt, gone, judge_silence=False))

    async def _turn(self, work: Callable[[], Awaitable[None]]) -> None:
        """One try; what fails is tried again at the next turn. A database that is away is said once, and its return."""
        try:
            await work()
            if self._is_cut_off:
                log.info("Postgres is back; the work goes on")
            self._is_cut_off = False
        except Unreachable as error:
            if not self._is_cut_off:
                log.warning("%s; waiting for it, nothing is lost", error)
            self._is_cut_off = True
        except Exception as error:
            log.error("the supervisor stumbled and goes on", exc_info=error)

    async def _look_around(self) -> None:
        self._neighbours = [
            row for row in await self._database.run(workers.list_workers(living=True)) if row.worker_id != self.worker
        ]
        await self._adopt(self._gone(), judge_silence=True)

    async def _beat(self) -> None:
        late = self._now() - self._last_beat > 2 * self._beat_seconds
        if not await self._database.try_once(workers.beat(self.worker)):
            await self._rise_again()
        self._last_beat = self._now()
        self._neighbours = [
            row
            for row in await self._database.try_once(workers.list_workers(living=True))
            if row.worker_id != self.worker
        ]
        # Whoever was away itself (suspended, or Postgres gone) cannot judge the silence of others yet.
        await self._adopt(self._gone(), judge_silence=not late)
        await self._free_lost()

    async def _adopt(self, gone: list[str], *, judge_silence: bool) -> None:
        adopted = await self._database.try_once(workers.adopt_tasks(self.worker, gone, judge_silence=judge_silence))
        self._neighbours = [row for row in self._neighbours if row.worker_id not in gone]
        for dead in sorted({row.worker for row in adopted}):
            count = sum(row.worker == dead for row in adopted)
            log.info("worker %s died; %d of its tasks %s queued again", dead, count, "are" if count != 1 else "is")

    async def _free_lost(self) -> None:
        """A claim whose answer got lost is claimed by us and run by nobody; two looks in a row are proof."""
        looking = workers.lost_dispatches(self.worker, engine.active_tasks(), seconds=LOST_SECONDS)
        found = await self._database.try_once(looking)
        lost = set(found)
        if certain := sorted(lost & self._suspects):
            await self._database.try_once(workers.free_tasks(certain))
            log.warning("%d tasks were claimed here but do not run; they are queued again", len(certain))
        self._suspects = lost

    async def _rise_again(self) -> None:
        old, self.worker = self.worker, new_worker_id()
        await self.register()
        engine.rename(self.worker)
        log.warning("worker %s was silent and taken for dead; it goes on as %s", old, self.worker)

    def _gone(self) -> list[str]:
        return [row.worker_id for row in self._neighbours if process.is_provably_gone(row.process, row.pid)]

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
