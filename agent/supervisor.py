"""Beside the work: beats, notices dead workers, and gives their tasks to the living."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from agent import engine, metrics, process
from agent.breaker import ToolBreakers
from agent.ear import Ear
from agent.isolation import Isolator
from agent.leftovers import Leftovers
from agent.log import log
from store import continuity, sessions, spending, stream, supervision, tasks, workers
from store.database import Database, Link
from store.errors import PerdureError, Unreachable
from store.supervision import CrashPolicy
from store.types import WorkerId, WorkerRow

GLANCE_SECONDS = 0.5
"""How often the processes of this machine's other workers are looked at; costs no query."""


TRIAL_GLANCE_SECONDS = 0.1
"""The same while suspects are being tried, who should not wait for one another longer than they must."""

TIMELY_BEATS = 2
"""Beats in time before a worker judges the silence of others: whoever was away itself cannot know."""

TEND_SECONDS = 60.0
"""How often the checkpoints of long work are kept up."""

SWEEP_SECONDS = 600.0
"""How often directories of deleted sessions are looked for, from the start on."""

LOST_SECONDS = 60.0
"""A claim that has not begun to run for so long never will; a busy worker may need a while to begin many."""


class Heart(threading.Thread):
    """Beats from a thread of its own: a worker whose event loop is busy is slow, not dead.

    It beats for those on trial too: one that hangs must be found by who watches it, for silence alone convicts nobody.
    """

    def __init__(
        self, url: str, worker: WorkerId, beat_seconds: float, on_trial: Callable[[], Sequence[WorkerId]]
    ) -> None:
        super().__init__(name="perdure-heart", daemon=True)
        self.worker = worker
        self._on_trial = on_trial
        self.timely = 0
        self.was_declared_dead = False
        self._beat_seconds = beat_seconds
        self._link = Link(url, size=1)
        self._ending = threading.Event()

    def run(self) -> None:
        last = time.monotonic()
        while not self._ending.wait(self._beat_seconds):
            try:
                if not self._link.run(workers.beat(self.worker)):
                    self.was_declared_dead = True
                for child in self._on_trial():
                    self._link.run(workers.beat(child))
                now = time.monotonic()
                self.timely = self.timely + 1 if now - last < 2 * self._beat_seconds else 0
                last = now
            except PerdureError:
                self.timely = 0

    def stop(self) -> None:
        self._ending.set()
        self.join(5)
        self._link.close()


class Supervisor:
    """Keeps one worker known as alive. `worker` changes only when others have declared it dead."""

    def __init__(
        self,
        database: Database,
        *,
        version: str,
        agents: Sequence[str],
        beat_seconds: float,
        policy: CrashPolicy,
        breakers: ToolBreakers,
        leftovers: Leftovers,
        session_seconds: float | None = None,
        isolated_as: WorkerId | None = None,
    ) -> None:
        self.worker = isolated_as or process.new_worker_id()
        self.is_isolated = isolated_as is not None
        self._policy = policy
        self._breakers = breakers
        self._leftovers = leftovers
        self._session_seconds = session_seconds
        self._isolator = Isolator(
            database, version=version, beat_seconds=beat_seconds, on_end=lambda worker: self._adopt([worker])
        )
        self._database = database
        self._version = version
        self._agents = agents
        self._beat_seconds = beat_seconds
        self._heart = Heart(database.url, self.worker, beat_seconds, lambda: self._isolator.on_trial)
        self._ear = Ear(database.url)
        self._neighbours: list[WorkerRow] = []
        self._is_cut_off = False
        self._tended = 0.0
        self._swept: float | None = None
        self._loop: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self._database.url

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
                agents=self._agents,
                beat_seconds=self._beat_seconds,
            )
        )

    def start(self) -> None:
        self._heart.start()
        self._ear.start()
        if self.is_isolated:
            return  # whoever is on trial judges nobody
        self._loop = asyncio.create_task(self._run(), name="perdure-supervisor")

    async def stop(self) -> None:
        """Judge nobody any more, but go on beating: the last words of a planned stop may take a while."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})

    async def fall_silent(self) -> None:
        await asyncio.to_thread(self._heart.stop)
        await asyncio.to_thread(self._ear.stop)

    def stop_trials(self) -> None:
        """Those on trial are stopped as planned, beside what runs here."""
        self._isolator.stop()

    async def end_trials(self, drain_seconds: float) -> None:
        await self._isolator.end(drain_seconds)

    async def _run(self) -> None:
        next_look = 0.0
        while True:
            now = asyncio.get_running_loop().time()
            if self._heart.was_declared_dead:
                await self._turn(self._rise_again)
            elif now >= next_look:
                next_look = now + self._beat_seconds
                await self._turn(self._look_around)
            elif gone := self._gone():
                await self._turn(partial(self._adopt, gone))
            if self._isolator.is_active:
                await self._turn(self._isolator.turn)
            pause = TRIAL_GLANCE_SECONDS if self._isolator.is_active else GLANCE_SECONDS
            await asyncio.sleep(min(pause, self._beat_seconds))

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
        living = await self._database.try_once(workers.list_workers(living=True))
        # Those on trial are left to whoever tries them, who knows how they ended.
        self._neighbours = [row for row in living if row.worker_id != self.worker and row.role == "worker"]
        await self._adopt(self._gone(), judge_silence=self._heart.timely >= TIMELY_BEATS)
        await self._free_lost()
        self._breakers.learn(await self._database.try_once(supervision.tend_breakers()))
        await self._isolator.turn()
        await self._database.try_once(tasks.expire_approvals())
        await self._tend()
        await self._sweep()

    async def _adopt(self, gone: list[str], *, judge_silence: bool = False) -> None:
        adopting = workers.adopt_tasks(self.worker, gone, judge_silence=judge_silence, policy=self._policy)
        adopted = await self._database.try_once(adopting)
        metrics.recoveries.inc(len(adopted))
        if adopted:
            self._isolator.expect()
        self._neighbours = [row for row in self._neighbours if row.worker_id not in gone]
        for dead in sorted({row.worker for row in adopted}):
            count = sum(row.worker == dead for row in adopted)
            log.info("worker %s died; %d of its tasks %s queued again", dead, count, "are" if count != 1 else "is")

    async def _free_lost(self) -> None:
        freed = await self._database.try_once(
            workers.free_lost(self.worker, engine.active_tasks(), seconds=LOST_SECONDS)
        )
        if freed:
            log.warning("%d tasks were claimed here but do not run; they are queued again", freed)

    async def _tend(self) -> None:
        if time.monotonic() - self._tended >= TEND_SECONDS:
            self._tended = time.monotonic()
            await self._database.try_once(continuity.tend_checkpoints(self.worker))
            await self._database.try_once(stream.sweep())
            await self._database.try_once(spending.release_budgets())
            if self._session_seconds is not None:
                await self._database.try_once(sessions.expire_sessions(self._session_seconds))

    async def _sweep(self) -> None:
        if self._swept is None or time.monotonic() - self._swept >= SWEEP_SECONDS:
            self._swept = time.monotonic()
            if removed := await self._leftovers.sweep():
                log.info("removed the directories of %d sessions that were deleted", removed)

    async def _rise_again(self) -> None:
        old, self.worker = self.worker, process.new_worker_id()
        await self.register()
        engine.rename(self.worker)
        self._heart.worker, self._heart.was_declared_dead = self.worker, False
        log.warning("worker %s was silent and taken for dead; it goes on as %s", old, self.worker)

    def _gone(self) -> list[str]:
        return [row.worker_id for row in self._neighbours if process.is_provably_gone(row.process, row.pid)]
