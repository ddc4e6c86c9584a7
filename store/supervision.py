"""What keeps the house: alerts, breakers, trials of suspects, hangs, dead letters and hand-overs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg.types.json import Jsonb

from store.errors import InvalidInput
from store.plain import is_text
from store.statement import Statement, all_of, nothing, one_or_none, query, value
from store.types import AlertRow, BreakerRow, DeadLetterRow, Json, OwnerToken, TaskId, WorkerId


@dataclass(frozen=True)
class CrashPolicy:
    """What follows from a crash: how long a task waits, when it is tried apart, and when a breaker opens."""

    waits: tuple[float, ...]
    isolate_after: int
    limit: int
    window_seconds: float


def raise_alert(key: str, *, what: str, did: str, advice: str) -> Statement[None]:
    return Statement(query("raise_alert"), {"key": key, "what": what, "did": did, "advice": advice}, nothing)


def resolve_alert(key: str) -> Statement[None]:
    return Statement(query("resolve_alert"), {"key": key}, nothing)


def list_alerts(*, all_of_them: bool = False) -> Statement[list[AlertRow]]:
    return Statement(query("list_alerts"), {"all": all_of_them}, all_of(AlertRow))


def read_alert(alert: int) -> Statement[AlertRow | None]:
    return Statement(query("read_alert"), {"alert": alert}, one_or_none(AlertRow))


def find_alert(key: str) -> Statement[AlertRow | None]:
    return Statement(query("find_alert"), {"key": key}, one_or_none(AlertRow))


def note_alert(alert: int, problem: str | None) -> Statement[None]:
    return Statement(query("note_alert"), {"alert": alert, "problem": problem}, nothing)


def tend_breakers() -> Statement[list[BreakerRow]]:
    """All that are open, after those whose time has come were tried or closed."""
    return Statement(query("tend_breakers"), {}, all_of(BreakerRow))


def list_breakers() -> Statement[list[BreakerRow]]:
    return Statement(query("list_breakers"), {}, all_of(BreakerRow))


def claim_trial(child: WorkerId, *, host: str, version: str, beat_seconds: float) -> Statement[bool]:
    return Statement(
        query("claim_trial"), {"child": child, "host": host, "version": version, "beat_seconds": beat_seconds}, value
    )


def note_end(worker: str, how: str, *, is_hang: bool) -> Statement[None]:
    return Statement(query("note_end"), {"worker": worker, "how": how, "is_hang": is_hang}, nothing)


def stall(task: TaskId, owner: OwnerToken, *, step: str, seconds: float) -> Statement[bool]:
    """Whether the task is dead of it."""
    return Statement(query("stall_task"), {"task": task, "owner": owner, "step": step, "seconds": seconds}, value)


def wait_for_tool(task: TaskId, owner: OwnerToken, scope: str) -> Statement[None]:
    return Statement(query("wait_for_tool"), {"task": task, "owner": owner, "scope": scope}, nothing)


def hand_over(task: TaskId, owner: OwnerToken, *, difference: str, messages: Sequence[Json]) -> Statement[TaskId]:
    return Statement(
        query("hand_over_task"),
        {"task": task, "owner": owner, "difference": difference, "messages": Jsonb(list(messages))},
        value,
    )


def list_dead_letters(
    *, user: str | None = None, limit: int | None = None, after: tuple[datetime, str] | None = None
) -> Statement[list[DeadLetterRow]]:
    """Newest first; those that come after a moment and an id in that order."""
    moment, last = after or (None, None)
    wanted = {"user": user, "limit": limit, "moment": moment, "after": last}
    return Statement(query("list_dead_letters"), wanted, all_of(DeadLetterRow))


def retry(task: str, words: str | None) -> Statement[TaskId]:
    if words is not None and not (words.strip(" \t\r\n") and is_text(words)):
        raise InvalidInput("the input is empty, or holds characters that are no text")
    return Statement(query("retry_task"), {"task": task, "words": words}, value)


def discard(task: str, why: str | None) -> Statement[None]:
    return Statement(query("discard_task"), {"task": task, "why": why}, nothing)
