"""Inputs that come by the clock."""

from __future__ import annotations

from datetime import UTC, datetime

from store.errors import InvalidInput
from store.plain import is_text
from store.statement import Statement, all_of, nothing, query, value
from store.timetable import Timetable
from store.types import Missed, OverdueSchedule, ScheduleRow, TaskId


def add(
    name: str,
    agent: str,
    text: str,
    timetable: Timetable,
    *,
    session: str | None,
    user: str | None,
    missed: Missed,
) -> Statement[None]:
    if not all(given is None or is_text(given) for given in (name, agent, text, session, user, missed)):
        raise InvalidInput("the input holds characters that are no text")
    return Statement(
        query("add_schedule"),
        {
            "name": name,
            "agent": agent,
            "input": text,
            "session": session,
            "user": user,
            "cron": timetable.cron,
            "at": timetable.at,
            "timezone": timetable.timezone,
            "missed": missed,
            "pattern": timetable.pattern,
            "first_at": timetable.at or timetable.after(datetime.now(UTC)),
        },
        nothing,
    )


def remove(name: str) -> Statement[None]:
    return Statement(query("remove_schedule"), {"name": name}, nothing)


def list_schedules(name: str | None = None) -> Statement[list[ScheduleRow]]:
    return Statement(query("list_schedules"), {"name": name}, all_of(ScheduleRow))


def list_overdue() -> Statement[list[OverdueSchedule]]:
    return Statement(query("list_overdue_schedules"), {}, all_of(OverdueSchedule))


def catch_up(schedule: OverdueSchedule, *, owed: datetime | None, following: datetime | None) -> Statement[None]:
    return Statement(
        query("catch_up_schedule"),
        {"name": schedule.name, "overdue": schedule.next_at, "owed": owed, "following": following},
        nothing,
    )


def fire(
    name: str, occurrence: datetime, *, following: datetime | None, run: str, owed: bool, late_seconds: float
) -> Statement[TaskId | None]:
    return Statement(
        query("fire_schedule"),
        {
            "name": name,
            "occurrence": occurrence,
            "following": following,
            "run": run,
            "owed": owed,
            "late_seconds": late_seconds,
        },
        value,
    )
