"""The one module through which a step is recorded, and the only one that knows DBOS's ownership token.

A recorded step never runs again: a recovered task is given what was recorded instead. Recording is DBOS's
own; what Perdure keeps beside it (journal, effects) is written by a trigger in the same transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from dbos import DBOS
from dbos._context import current_owner_xid
from dbos._error import DBOSWorkflowConflictIDError

from store.database import Database
from store.errors import Fenced
from store.statement import Statement
from store.types import OpenedTask, OwnerToken, PersonDecision, TaskId, WorkerId

T = TypeVar("T")


@dataclass(frozen=True)
class Execution:
    """One worker's run of one task, and its right to write for it."""

    task: OpenedTask
    owner: OwnerToken
    worker: WorkerId
    decisions: dict[str, PersonDecision] = field(default_factory=dict[str, PersonDecision])


current: ContextVar[Execution | None] = ContextVar("perdure_execution", default=None)


@contextmanager
def executing(execution: Execution) -> Iterator[None]:
    """What runs inside knows on whose behalf."""
    token = current.set(execution)
    try:
        yield
    finally:
        current.reset(token)


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
        return await step()

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
