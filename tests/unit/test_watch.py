"""The watchdog of a worker, on real event loops and threads; what it can do about a hang is only written down."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from agent import watch
from agent.watch import Rescue, Step, StepAborted, ToolThreads, Watchdog, attributed, beat, watched
from store.errors import Unreachable
from store.types import OwnerToken, TaskId
from tests.workers import PATIENCE

STALL = 0.2
TASK, OWNER = TaskId("t-1"), OwnerToken("o")


class Ward:
    """A worker that a watchdog watches. While Postgres is away, whatever has to be written there fails."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.given_up: list[str] = []
        self.reported: list[str] = []
        self.replaced = threading.Event()

    def _write(self) -> None:
        if self.failures:
            self.failures -= 1
            raise Unreachable("Postgres does not answer")

    def give_up(self, step: Step) -> None:
        self._write()
        self.given_up.append(f"{step.name} of {step.task}")

    def report(self, what: str, stack: str) -> None:
        self._write()
        self.reported.append(f"{what}\n{stack}")

    async def replace(self) -> None:
        self.replaced.set()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        async def main() -> None:
            rescue = Rescue(self.give_up, self.report, lambda: None, self.replace, self.replaced.set)
            watchdog = Watchdog(asyncio.get_running_loop(), STALL, rescue)
            watchdog.start()
            try:
                await work
            finally:
                watchdog.stop()
                watchdog.join(PATIENCE)

        asyncio.run(main())


@pytest.fixture(autouse=True)
def forget() -> None:
    watch._steps.clear()
    watch._left_behind.clear()


def test_what_blocks_the_event_loop_in_a_task_that_a_tool_began_is_the_tools() -> None:
    ward = Ward()

    async def block() -> None:
        assert ward.replaced.wait(PATIENCE)

    async def tool() -> None:
        async with watched("tool.nests", TASK, OWNER):
            await asyncio.gather(asyncio.create_task(block()))

    ward.run(tool())
    assert ward.given_up == ["tool.nests of t-1"]
    assert "tool.nests of task t-1 blocked the event loop" in ward.reported[0]
    assert "in block\n" in ward.reported[0]


def test_what_blocks_the_event_loop_outside_of_tools_is_the_tasks_too() -> None:
    ward = Ward()

    async def work() -> None:
        with attributed(TASK, OWNER):
            assert ward.replaced.wait(PATIENCE)

    ward.run(work())
    assert ward.given_up == ["the agent's own code of t-1"]


def test_a_blocked_event_loop_is_replaced_also_while_postgres_is_away() -> None:
    ward = Ward(failures=1_000_000)

    async def tool() -> None:
        async with watched("tool.clogs", TASK, OWNER):
            assert ward.replaced.wait(PATIENCE)

    ward.run(tool())
    assert ward.given_up == []


def test_a_blocked_thread_is_given_up_once_postgres_is_back() -> None:
    ward = Ward(failures=3)
    release = threading.Event()

    async def tool() -> None:
        async with watched("tool.sleeps", TASK, OWNER):
            stubborn = asyncio.get_running_loop().run_in_executor(threads, release.wait, PATIENCE)
            until = time.monotonic() + PATIENCE
            while not ward.replaced.is_set() and time.monotonic() < until:
                with contextlib.suppress(asyncio.CancelledError):  # it does not let itself be aborted
                    await asyncio.wait({stubborn}, timeout=STALL / 10)
            release.set()

    with ToolThreads() as threads:
        ward.run(tool())
    assert ward.failures == 0
    assert ward.given_up == ["tool.sleeps of t-1"]


def test_a_tool_that_waits_for_a_thread_is_not_yet_judged() -> None:
    ward = Ward()
    release = threading.Event()

    async def wait_in_line() -> None:
        async with watched("tool.waits", TASK, OWNER):
            until = time.monotonic() + 5 * STALL
            waiting = asyncio.get_running_loop().run_in_executor(threads, lambda: "done")
            while time.monotonic() < until:
                await asyncio.sleep(STALL / 10)
            release.set()
            assert await waiting == "done"

    with ToolThreads() as threads:
        threads._max_workers = 1
        threads.submit(release.wait, PATIENCE)
        ward.run(wait_in_line())
    assert not ward.replaced.is_set()


def test_a_tool_that_is_silent_is_aborted_and_one_that_beats_is_not() -> None:
    ward = Ward()
    beaten = 0

    async def both() -> None:
        nonlocal beaten
        async with watched("tool.beats", TASK, OWNER):
            for _ in range(20):
                await asyncio.sleep(STALL / 4)
                beat()
                beaten += 1
        with pytest.raises(StepAborted, match=r"tool\.awaits"):
            async with watched("tool.awaits", TASK, OWNER):
                await asyncio.Event().wait()

    ward.run(both())
    assert beaten == 20
    assert not ward.replaced.is_set()
