"""When a schedule runs: a cron expression in a timezone, or one moment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from croniter import croniter  # type: ignore[import-untyped]

from store.errors import InvalidInput

INSTANT = timedelta(microseconds=1)
BY_CHANCE = re.compile(r"(^|[\s,])[rh]($|[\s,/(])", re.IGNORECASE)
"""Fields that croniter fills in at random, and so each worker differently."""


@dataclass(frozen=True)
class Timetable:
    cron: str | None
    at: datetime | None
    timezone: str = "UTC"

    @property
    def pattern(self) -> str:
        """What DBOS's scheduler is given, which knows only cron: for one moment, the expression that meets it first."""
        if self.cron is not None:
            return self.cron
        assert self.at is not None
        moment = self.at.astimezone(UTC)
        return f"{moment.second} {moment.minute} {moment.hour} {moment.day} {moment.month} *"

    def after(self, moment: datetime) -> datetime | None:
        """The first occurrence after a moment, if there is one."""
        if self.cron is None:
            return self.at if self.at is not None and self.at > moment else None
        following: datetime = self._from(moment).get_next(datetime)
        return following

    def latest(self, until: datetime) -> datetime | None:
        """The last occurrence up to and including a moment, if there is one."""
        if self.cron is None:
            return self.at if self.at is not None and self.at <= until else None
        last: datetime = self._from(until + INSTANT).get_prev(datetime)
        return last

    def _from(self, moment: datetime) -> croniter:
        return croniter(self.cron, moment.astimezone(ZoneInfo(self.timezone)), second_at_beginning=True)


def read_timetable(cron: str | None, at: datetime | str | None, timezone: str) -> Timetable:
    """What a person gave, checked."""
    if (cron is None) == (at is None):
        raise InvalidInput("a schedule has either a cron expression or a moment, and not both")
    try:
        zone = ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):
        raise InvalidInput(f"there is no timezone {timezone!r}; a name is like Europe/Berlin or UTC") from None
    if cron is None:
        assert at is not None
        return Timetable(None, read_moment(at, zone), timezone)
    return Timetable(read_cron(cron), None, timezone)


def read_cron(cron: str) -> str:
    fields = cron.split()
    plain = " ".join(fields)
    if len(fields) not in (5, 6) or BY_CHANCE.search(plain) or not croniter.is_valid(plain, second_at_beginning=True):
        raise InvalidInput(
            f"{cron!r} is no cron expression: it has five fields (minute, hour, day, month, weekday),"
            " or six with seconds first"
        )
    try:
        croniter(plain, datetime.now(UTC), second_at_beginning=True).get_next(datetime)
    except ValueError:
        raise InvalidInput(f"the time of {cron!r} never comes") from None
    return plain


def read_moment(given: datetime | str, zone: ZoneInfo) -> datetime:
    """A moment without an offset is in the schedule's timezone; a part of a second counts as a whole one."""
    try:
        moment = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        raise InvalidInput(f"{given!r} is no moment; one is like 2026-12-01T09:00:00Z") from None
    moment = (moment if moment.tzinfo else moment.replace(tzinfo=zone)).astimezone(UTC)
    return moment if not moment.microsecond else moment.replace(microsecond=0) + timedelta(seconds=1)
