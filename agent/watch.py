"""Signs of life. A step that gives none for too long is aborted, or the worker replaced when nothing else helps.

What counts is progress: a tool that works long says so with `beat()`. The watchdog is a thread, so that it also
sees an event loop that is blocked.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from agent.log import log
from store.types import OwnerToken, TaskId

T = TypeVar("T")

GRACE_SHARE = 0.25
"""Of the stall time, what an aborted step has to end before its thread is taken for blocked."""
MOST_THREADS = 128
LATE_SECONDS = 5.0
"""A watchdog that was itself away for so long judges nobody by the time it missed."""


@dataclass(eq=False)
class Step:
    """A call that runs now."""

    name: str
    task: TaskId
    owner: OwnerToken
    runner: asyncio.Task[object]
    beat_at: float = field(default_factory=time.monotonic)
    threads: list[Future[Any]] = field(default_factory=list[Future[Any]])
    aborted_at: float | None = None
    is_abandoned: bool = False
    must_replace: bool = False
    """The worker takes nothing new because of this step, so it has to be replaced whatever becomes of it."""

    @property
    def is_in_a_thread(self) -> bool:
        return any(thread.running() for thread in self.threads)

    @property
    def is_waiting_for_a_thread(self) -> bool:
        return any(not thread.running() and not thread.done() for thread in self.threads)


class StepAborted(Exception):
    """A step gave no sign of life and was aborted."""


_steps: set[Step] = set()
_left_behind: list[Step] = []
"""Aborted, but a thread of theirs ran on."""
_step_of: WeakKeyDictionary[asyncio.Task[Any], Step] = WeakKeyDictionary()
"""On whose behalf a task of the event loop runs, also one that a tool has begun."""
_step: ContextVar[Step | None] = ContextVar("perdure_step", default=None)


class ToolThreads(ThreadPoolExecutor):
    """Runs tools that are plain functions, and remembers for which step."""

    def __init__(self) -> None:
        super().__init__(max_workers=MOST_THREADS, thread_name_prefix="perdure-tool")

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return followed(super().submit, fn, *args, **kwargs)


def followed(submit: Callable[..., Future[T]], fn: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
    """Submit, and remember for which step; its time begins when a thread is free for it."""
    step = _step.get()
    if step is None:
        return submit(fn, *args, **kwargs)

    def begin() -> T:
        step.beat_at = time.monotonic()
        return fn(*args, **kwargs)

    future = submit(begin)
    step.threads.append(future)
    return future


def beat() -> None:
    """Call this from a tool that works long, from time to time: it is alive."""
    step = _step.get()
    if step is not None:
        step.beat_at = time.monotonic()


@asynccontextmanager
async def watched(name: str, task: TaskId, owner: OwnerToken) -> AsyncIterator[None]:
    """What runs inside is aborted when it gives no sign of life."""
    runner = asyncio.current_task()
    assert runner is not None
    step = Step(name, task, owner, runner)
    token = _step.set(step)
    before = _step_of.get(runner)
    _step_of[runner] = step
    _steps.add(step)
    try:
        yield
    except asyncio.CancelledError:
        if step.aborted_at is None:
            raise
        runner.uncancel()
        raise StepAborted(name) from None
    finally:
        _steps.discard(step)
        if step.must_replace:
            _left_behind.append(step)
        _step.reset(token)
        if before is None:
            _step_of.pop(runner, None)
        else:
            _step_of[runner] = before


@contextmanager
def attributed(task: TaskId, owner: OwnerToken) -> Iterator[None]:
    """What blocks the event loop inside is this task's, also where no tool of it is to blame."""
    runner = asyncio.current_task()
    assert runner is not None
    step = Step("the agent's own code", task, owner, runner)
    token = _step.set(step)
    _step_of[runner] = step
    try:
        yield
    finally:
        _step.reset(token)
        _step_of.pop(runner, None)


def abandoned() -> set[str]:
    """Tasks that a blocked thread still holds; somebody else has them by now."""
    return {step.task for step in _steps if step.is_abandoned}


@dataclass(frozen=True)
class Rescue:
    """What the watchdog can do, most of it from its own thread."""

    give_up: Callable[[Step], None]
    """Takes the task of a step that cannot be aborted out of this worker's hands."""
    report: Callable[[str, str], None]
    """Tells people what blocks the event loop, and where."""
    stop_taking: Callable[[], None]
    """No new work here, for this worker will be replaced; called on the event loop."""
    replace: Callable[[], Awaitable[None]]
    """Ends this process in good order and begins anew."""
    replace_now: Callable[[], None]
    """The same without the event loop."""


class Watchdog(threading.Thread):
    def __init__(self, loop: asyncio.AbstractEventLoop, stall_seconds: float, rescue: Rescue) -> None:
        super().__init__(name="perdure-watchdog", daemon=True)
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._stall = stall_seconds
        self._pause = min(max(stall_seconds / 10, 0.05), 1.0)
        self._rescue = rescue
        self._ticked = time.monotonic()
        self._is_replacing = False
        self._ending = threading.Event()
        loop.set_task_factory(_make_task)

    @property
    def is_healthy(self) -> bool:
        return time.monotonic() - self._ticked < self._stall

    def stop(self) -> None:
        self._ending.set()

    def run(self) -> None:
        looked = time.monotonic()
        while not self._ending.wait(self._pause):
            now = time.monotonic()
            if now - looked > self._pause + LATE_SECONDS:
                self._forgive(now)
            looked = now
            try:
                self._loop.call_soon_threadsafe(self._tick)
                self._look(now)
            except Exception as error:
                log.error("the watchdog stumbled and goes on", exc_info=error)

    def _tick(self) -> None:
        self._ticked = time.monotonic()

    def _forgive(self, now: float) -> None:
        """This process was frozen; nobody in it could move."""
        self._ticked = now
        for step in list(_steps):
            step.beat_at = now

    def _look(self, now: float) -> None:
        if now - self._ticked > self._stall:
            self._unblock(now)
            return
        if _left_behind:
            self._replace(_left_behind.pop())
        for step in list(_steps):
            if step.is_abandoned or now - step.beat_at <= self._stall or step.is_waiting_for_a_thread:
                continue
            if step.aborted_at is None:
                self._loop.call_soon_threadsafe(self._abort, step)
            elif now - step.aborted_at > self._stall * GRACE_SHARE:
                self._abandon(step)

    def _abort(self, step: Step) -> None:
        if step in _steps and step.aborted_at is None:
            step.aborted_at = time.monotonic()
            if step.is_in_a_thread:
                step.must_replace = True
                self._rescue.stop_taking()
            step.runner.cancel()

    def _abandon(self, step: Step) -> None:
        """The step does not let itself be aborted: a thread is blocked, and only the end of the process ends it."""
        self._rescue.give_up(step)
        step.is_abandoned = True
        self._replace(step)

    def _replace(self, step: Step) -> None:
        if not self._is_replacing:
            self._is_replacing = True
            log.warning("%s of task %s blocks a thread for good; this worker is replaced", step.name, step.task)
            asyncio.run_coroutine_threadsafe(_run(self._rescue.replace), self._loop)

    def _unblock(self, now: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "unknown"
        runner = asyncio.current_task(self._loop)
        culprit = _step_of.get(runner) if runner is not None else None
        name = f"{culprit.name} of task {culprit.task}" if culprit else "something outside any step"
        seconds = now - self._ticked
        said = "%s has blocked the event loop for %.1f s; this worker is replaced"
        log.error(said, name, seconds, extra={"where": stack})
        try:
            self._rescue.report(f"{name} blocked the event loop of a worker for {seconds:.1f} s", stack)
            if culprit is not None:
                self._rescue.give_up(culprit)
        except Exception as error:  # Postgres may be away: the worker must be replaced all the same
            log.error("what blocked the event loop could not be noted", exc_info=error)
        self._rescue.replace_now()


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    step = _step.get()
    if step is not None:
        _step_of[task] = step
    return task


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()
