"""Schedules: DBOS's scheduler keeps the time, and a small workflow beside the tasks makes each occurrence a task.

DBOS enqueues one workflow per occurrence, with the occurrence in its id, so several workers that keep the same time
fire it once. What it would make of a time without workers is decided before it starts: see `catch_up`.
"""

from __future__ import annotations

from datetime import datetime

from dbos import DBOS

from agent.log import log
from agent.recorder import record
from store import schedules
from store.database import Database
from store.timetable import Timetable
from store.types import OverdueSchedule

FIRE = "schedule.fire"

LATE_SECONDS = 60.0
"""An occurrence fired later than this was missed: its worker slept, or Postgres was away. DBOS may take 10 s."""


def register_schedules(database: Database) -> None:
    @DBOS.workflow(name="fire_schedule")
    async def fire_schedule(  # pyright: ignore[reportUnusedFunction]
        occurrence: datetime | str, name: str, owed: bool = False
    ) -> None:
        moment = datetime.fromisoformat(occurrence) if isinstance(occurrence, str) else occurrence
        await fire(database, name, moment, owed=owed)


async def fire(database: Database, name: str, occurrence: datetime, *, owed: bool) -> None:
    run = DBOS.workflow_id
    assert run is not None

    async def step() -> str | None:
        """Safe to repeat: the task's idempotency key is made of the schedule's name and the occurrence."""
        found = await database.run(schedules.list_schedules(name))
        if not found:
            return None
        timetable = Timetable(found[0].cron, found[0].at, found[0].timezone)
        return await database.run(
            schedules.fire(
                name,
                occurrence,
                following=timetable.after(occurrence),
                run=run,
                owed=owed,
                late_seconds=LATE_SECONDS,
            )
        )

    await record(FIRE, step)


async def catch_up(database: Database) -> None:
    """See to what fell due while nobody was there, before DBOS's scheduler starts and makes up all of it."""
    for schedule in await database.run(schedules.list_overdue()):
        timetable = Timetable(schedule.cron, schedule.at, schedule.timezone)
        owed = owed_by(schedule, timetable)
        await database.run(schedules.catch_up(schedule, owed=owed, following=timetable.after(schedule.now)))
        log.info(
            "schedule %s was due at %s: %s",
            schedule.name,
            schedule.next_at.isoformat(),
            "made up" if owed else "skipped",
        )


def owed_by(schedule: OverdueSchedule, timetable: Timetable) -> datetime | None:
    """The one occurrence to make up, if any: the last, or the last one that a worker saw before it was killed."""
    until = schedule.now if schedule.missed == "once" else schedule.watched_until
    return None if until is None else timetable.latest(min(until, schedule.now))
