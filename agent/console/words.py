"""What the console says, in words that people understand. Pure: rows and a moment in, sentences out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from store.overview import OverviewRow

Tone = Literal["ask", "bad", "busy", "calm", "quiet"]

RECENT_SECONDS = 3600.0
"""How long an interruption is worth a word on the first screen."""


@dataclass(frozen=True)
class Status:
    """How a session is: who should care (`tone`), in a word or two, and in a sentence."""

    tone: Tone
    word: str
    sentence: str
    needs_you: bool = False


def status_of(row: OverviewRow, now: datetime) -> Status:
    if row.questions:
        return _waiting(row, now)
    if row.doubts:
        more = f" and {row.doubts - 1} more" if row.doubts > 1 else ""
        return Status("ask", "in doubt", f"nobody recorded how {row.doubted_tool}{more} ended", True)
    if row.state == "quarantined":
        return Status("bad", "quarantined", "crashed too often; nothing runs until it has rested", True)
    if row.dead_tasks and not row.open_tasks:
        count = "a task" if row.dead_tasks == 1 else f"{row.dead_tasks} tasks"
        return Status("bad", "dead letter", f"{count} will not be tried again until you say so", True)
    if row.state == "paused":
        word = f"in the hands of {row.taken_by}" if row.taken_by else "paused"
        return Status("quiet", word, f"{_waits(row.open_tasks)}, last active {ago(row.last_active_at, now)}")
    if row.state == "closed":
        return Status("quiet", "closed", f"since {ago(row.last_active_at, now)}")
    if row.open_tasks:
        return _running(row, now)
    if row.interrupted_at is not None and (now - row.interrupted_at).total_seconds() < RECENT_SECONDS:
        return Status("calm", f"recovered {ago(row.interrupted_at, now)}", f"{row.again or 0} steps run again")
    return Status(
        "quiet", "idle", f"last active {ago(row.last_active_at, now)}" if row.messages else "nothing said yet"
    )


def _waiting(row: OverviewRow, now: datetime) -> Status:
    since = while_(now - row.asked_at) if row.asked_at else ""
    what = "your answer" if row.asked_kind == "question" else "your approval"
    more = f", and {row.questions - 1} more" if row.questions and row.questions > 1 else ""
    return Status("ask", f"waiting for {what}, {since}", f"{row.asked_tool}{more}", True)


def _running(row: OverviewRow, now: datetime) -> Status:
    if row.running_since is None:
        if row.runs_after is not None and row.runs_after > now:
            after = while_(row.runs_after - now)
            return Status("busy", "will go on", f"after an interruption, in {after}")
        return Status("busy", "queued", f"{_waits(row.open_tasks)}")
    parts = [f"for {while_(now - row.running_since)}"]
    if row.open_tasks > 1:
        parts.append(f"{row.open_tasks - 1} queued")
    if row.interrupted_at is not None and row.interrupted_at > row.running_since:
        parts.append(recovery(row, now))
    return Status("busy", "working", ", ".join(parts))


def recovery(row: OverviewRow, now: datetime) -> str:
    assert row.interrupted_at is not None
    return f"recovered {ago(row.interrupted_at, now)}, {row.again or 0} steps run again"


def _waits(tasks: int) -> str:
    return {0: "nothing waits", 1: "1 task waits"}.get(tasks, f"{tasks} tasks wait")


def span(seconds: float) -> str:
    """A length of time as people say it: one unit, rounded down."""
    seconds = max(seconds, 0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, size, limit in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 36)):
        if seconds < size * limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def while_(time: timedelta) -> str:
    return span(time.total_seconds()) if time.total_seconds() >= 1 else "a moment"


def ago(moment: datetime, now: datetime) -> str:
    seconds = (now - moment).total_seconds()
    return "just now" if seconds < 10 else f"{span(seconds)} ago"


def tokens(count: int | None) -> str:
    if count is None:
        return "–"
    return str(count) if count < 1000 else f"{count / 1000:.1f}k" if count < 100_000 else f"{count // 1000}k"


def size(count: int) -> str:
    return (
        f"{count} B" if count < 1024 else f"{count / 1024:.1f} KB" if count < 1024**2 else f"{count / 1024**2:.1f} MB"
    )
