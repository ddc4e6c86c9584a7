"""A session's tasks and steps on a line: when each waited, ran, was interrupted, and what of it was kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from store import sessions, tasks
from store.database import Database
from store.types import EventRow, StepRow, TaskRow

WIDTH = 1000
"""Of a drawing; browsers scale it."""

MOST_TASKS = 30
MOST_EVENTS = 1000

How = Literal["run", "kept", "after", "settled"]


@dataclass(frozen=True)
class Bar:
    x: float
    width: float
    kind: str


@dataclass(frozen=True)
class StepLine:
    row: StepRow
    name: str
    bar: Bar
    seconds: float
    how: How
    """`kept` steps were on record when their worker ended, and given back instead of run again; `after` are those that
    a later worker ran; `settled` were in doubt."""
    note: str


@dataclass(frozen=True)
class TaskLine:
    row: TaskRow
    bars: list[Bar]
    queued: float
    ran: float
    down: float
    restarts: int
    kept: int
    steps: list[StepLine]


async def read_timeline(database: Database, session: str, journal_seq: int, now: datetime) -> list[TaskLine]:
    """The newest tasks first."""
    known = await database.try_once(tasks.list_tasks(session=session, limit=MOST_TASKS))
    events = await database.try_once(
        sessions.read_journal(session, after=max(0, journal_seq - MOST_EVENTS), limit=MOST_EVENTS)
    )
    lines: list[TaskLine] = []
    for row in known:
        steps = await database.try_once(tasks.list_steps(row.task_id))
        lines.append(draw(row, steps, [event for event in events if event.task_id == row.task_id], now))
    return lines


def draw(task: TaskRow, steps: Sequence[StepRow], events: Sequence[EventRow], now: datetime) -> TaskLine:
    start, end = task.accepted_at, task.finished_at or now
    total = max((end - start).total_seconds(), 0.001)

    def bar(begin: datetime, until: datetime, kind: str) -> Bar:
        x = max(0.0, (begin - start).total_seconds()) / total * WIDTH
        width = max((until - begin).total_seconds() / total * WIDTH, 3.0)
        return Bar(round(min(x, WIDTH - 3), 1), round(min(width, WIDTH - min(x, WIDTH - 3)), 1), kind)

    began = task.started_at
    bars = [bar(start, began or end, "queued")]
    if began is not None:
        bars.append(bar(began, end, task.status))
    gaps = gaps_of(events, end)
    bars += [bar(begin, until, "down") for begin, until in gaps]
    down = sum((until - begin).total_seconds() for begin, until in gaps)
    last_gap = gaps[-1][1] if gaps else None
    finished = {event.data.get("step"): event.data for event in events if event.kind == "tool.finished"}
    doubted = {event.data.get("call_id") for event in events if event.kind == "effect.doubted"}
    lines = []
    for row in steps:
        facts = finished.get(row.step, {})
        begin, until = row.started_at or start, row.finished_at or end
        how: How = "run"
        if facts.get("call_id") in doubted and facts:
            how = "settled"
        elif last_gap is not None:
            how = "kept" if until <= last_gap else "after"
        note = str(facts.get("settled") or "") if how == "settled" else row.error or ""
        lines.append(StepLine(row, short_name(row), bar(begin, until, how), (until - begin).total_seconds(), how, note))
    return TaskLine(
        task,
        bars,
        queued=((began or end) - start).total_seconds(),
        ran=max((end - began).total_seconds() - down, 0) if began else 0,
        down=down,
        restarts=len(gaps),
        kept=sum(line.how == "kept" for line in lines),
        steps=lines,
    )


def gaps_of(events: Sequence[EventRow], end: datetime) -> list[tuple[datetime, datetime]]:
    """From each end of a worker to the moment another one went on."""
    gaps: list[tuple[datetime, datetime]] = []
    since: datetime | None = None
    for event in events:
        if event.kind in ("worker.died", "worker.stopped", "task.stalled"):
            since = since or event.at
        elif event.kind == "task.resumed" and since is not None:
            gaps.append((since, event.at))
            since = None
    return [*gaps, (since, end)] if since is not None else gaps


def short_name(row: StepRow) -> str:
    if row.kind == "model":
        return "model request"
    return row.name.removeprefix("tool.")
