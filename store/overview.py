"""What people look at first: sessions by who needs them, what the house runs, and what stands where."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from store.statement import Rows, Statement, all_of, query, value
from store.types import OpenedTask, Row, SessionId, SessionRow, TaskId, TaskRow

CELL_SECONDS = 900
"""A strip of 24 hours has a cell for each of these."""


class OverviewRow(SessionRow):
    """A session, and what somebody wants to know before opening it."""

    questions: int | None
    asked_at: datetime | None
    asked_tool: str | None
    asked_kind: str | None
    doubts: int | None
    doubted_at: datetime | None
    doubted_tool: str | None
    running_since: datetime | None
    runs_after: datetime | None
    interrupted_by: str | None
    interrupted_at: datetime | None
    acknowledged_at: datetime | None
    again: int | None
    """Recorded steps of the interrupted task that ran again nevertheless: 0, or something is very wrong."""
    taken_by: str | None
    journal_seq: int
    parent_title: str | None
    strip: list[tuple[int, int, int]] | None
    """Of the last 24 hours: cell, events in it, and 2 for a restart or 1 for a compaction in it."""


class Counts(Row):
    alive: int
    restarts: int
    lost: int
    dead: int
    workers: int
    alerts: int


class CrashRow(Row):
    worker_id: str
    task_id: TaskId
    session_id: SessionId
    agent: str
    tool: str | None
    is_blamed: bool
    at: datetime


def read_overview(
    now: datetime, *, user: str | None, ids: Sequence[str] | None = None, limit: int = 100
) -> Statement[list[OverviewRow]]:
    wanted = {
        "now": now, "user": user, "ids": list(ids) if ids is not None else None, "limit": limit, "cell": CELL_SECONDS,
    }  # fmt: skip
    return Statement(query("read_overview"), wanted, all_of(OverviewRow))


def count(user: str | None) -> Statement[Counts]:
    return Statement(query("count_overview"), {"user": user}, lambda rows: Counts.model_validate(rows[0]))


def read_next_task(session: str) -> Statement[OpenedTask | None]:
    """What is opened next: the task under way, or the one that the next input would be, which has no id yet."""

    def read(rows: Rows) -> OpenedTask | None:
        return OpenedTask.model_validate(value(rows)) if rows else None

    return Statement(query("read_next_task"), {"session": session}, read)


def list_crashes(*, limit: int = 50) -> Statement[list[CrashRow]]:
    return Statement(query("list_crashes"), {"limit": limit}, all_of(CrashRow))


def list_running(*, limit: int = 500) -> Statement[list[TaskRow]]:
    return Statement(query("list_running_tasks"), {"limit": limit}, all_of(TaskRow))
