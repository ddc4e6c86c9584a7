"""The one module through which a step is recorded, and the only one that knows DBOS's ownership token.

A recorded step never runs again: a recovered task is given what was recorded instead. Recording is DBOS's
own; what Perdure keeps beside it (journal, effects) is written by a trigger in the same transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dbos import DBOS
from dbos._context import current_owner_xid
from dbos._error import DBOSUnexpectedStepError, DBOSWorkflowConflictIDError

from agent import metrics
from agent.folder import Folder
from store import spending, tasks, wishes
from store.database import Database
from store.errors import Fenced
from store.plain import CannotLoad
from store.statement import Statement
from store.types import OpenedTask, OwnerToken, PersonDecision, SessionId, Spent, Steer, TaskId, Wish, WorkerId

T = TypeVar("T")


@dataclass
class Conversation:
    """The messages of a run, where their originals stand, and what of them a summary represents."""

    positions: list[int]
    """Of the messages that were there when the task was opened; those it adds follow on."""
    next_position: int
    summary: str | None = None
    cut: int = 0
    lightened_through: int = 0
    """The last message of which it is on record that results of calls were left out."""
    before_resuming: tuple[str | None, int] | None = None
    """Summary and cut as they were before a resumed task left out more than is recorded."""
    messages: list[Any] = field(default_factory=list[Any])

    @property
    def prompt_index(self) -> int:
        return len(self.positions)

    def position_of(self, index: int) -> int:
        known = len(self.positions)
        return self.positions[index] if index < known else self.next_position + index - known

    def position_before(self, cut: int) -> int | None:
        """The last position that the messages before the cut cover without a gap, if there is one."""
        later = [self.position_of(index) for index in range(cut, len(self.messages))]
        covered = [self.position_of(index) for index in range(cut)]
        whole = [position for position in covered if not later or position < min(later)]
        return max(whole, default=None)


@dataclass
class Execution:
    """One worker's run of one task, and its right to write for it."""

    task: OpenedTask
    owner: OwnerToken
    worker: WorkerId
    decisions: dict[str, PersonDecision] = field(default_factory=dict[str, PersonDecision])
    conversation: Conversation = field(default_factory=lambda: Conversation([], 1))
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_recovering: bool = False
    steers: tuple[Steer, ...] = ()
    owed: list[PersonDecision] = field(default_factory=list[PersonDecision])
    """Decisions made for tasks that this one replaces, and not used yet."""
    is_called: bool = False
    """Whether somebody has asked something of the task since it last looked."""
    folder: Folder | None = None
    """The session's files, once they are what the manifest says."""
    spent: list[Spent] = field(default_factory=list[Spent])
    """What requests have used that is not on record yet; the next record of an answer takes it along."""


current: ContextVar[Execution | None] = ContextVar("perdure_execution", default=None)

_running: dict[int, Execution] = {}


@contextmanager
def executing(execution: Execution) -> Iterator[None]:
    """What runs inside knows on whose behalf."""
    token = current.set(execution)
    _running[id(execution)] = execution
    try:
        yield
    finally:
        del _running[id(execution)]
        current.reset(token)


def call(session: SessionId | None) -> None:
    """The session's task looks before its next step what is wanted of it; without a session, every task does."""
    for execution in list(_running.values()):
        if session is None or execution.task.session_id == session:
            execution.is_called = True


def ownership(task: TaskId) -> OwnerToken:
    token = current_owner_xid(task)
    assert token is not None, "asked outside the workflow that runs the task"
    return OwnerToken(token)


def is_recording() -> bool:
    """Whether a step started now would be recorded, rather than run inside one that is."""
    return DBOS.workflow_id is not None and DBOS.step_id is None


async def record(name: str, step: Callable[[], Awaitable[T]]) -> T:
    """Run a step once in the life of its task; `name` is stored and must never change."""

    async def body() -> T:
        with metrics.step(name.partition(".")[0], "done", STOPS) as ending:
            result = await step()
            if isinstance(result, dict):  # what a tool's record says of its end
                ending.said = str(result.get("outcome", "done"))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            return result

    return await DBOS.run_step_async({"name": name}, body)


async def fenced(database: Database, statement: Statement[T], task: TaskId) -> T:
    """Execute a write on behalf of a task, or stop this execution if the task has moved on."""
    try:
        return await database.run(statement)
    except Fenced:
        raise lost(task) from None


def lost(task: TaskId) -> BaseException:
    """Stops an execution without recording an outcome: the task belongs to its owner, or to the queue."""
    return DBOSWorkflowConflictIDError(task)


def misfit(error: BaseException) -> str | None:
    """Where the records no longer fit the code of today, if that is what the error says."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, DBOSUnexpectedStepError):
            _, step, expected, recorded = seen.inputs
            return f"step {step} is on record as {recorded}, and the code now asks for {expected}"
        if isinstance(seen, (WrongCall, CannotLoad)):
            return str(seen)
        seen = seen.__cause__ or seen.__context__
    return None


class TaskStopped(Exception):
    """Somebody cancelled the task, or said something more urgent; what it did so far stays."""


async def look_up(database: Database, execution: Execution) -> None:
    """Before a step that asks the database nothing: heed what is wanted, if anybody called."""
    if execution.is_called:
        execution.is_called = False
        await heed(database, execution, await database.run(wishes.read_wish(execution.task.task_id)))


async def heed(database: Database, execution: Execution, wish: Wish | None) -> None:
    """Before a step: wait or end here, when that is what somebody wants."""
    task = execution.task.task_id
    match wish:
        case None:
            return
        case "pause":
            await fenced(database, tasks.stop_here(task, execution.owner), task)
            raise lost(task)
        case "budget":
            if await fenced(database, spending.stop_for_budget(task, execution.owner), task):
                raise lost(task)
        case "interrupt":
            raise TaskStopped("interrupted by a newer message")
        case "cancel":
            raise TaskStopped("cancelled")


STOPS = (TaskStopped, DBOSWorkflowConflictIDError)
"""What ends an execution before a step without that being the step's failure."""


class WrongCall(Exception):
    """The record of another call stands where this one is made."""
