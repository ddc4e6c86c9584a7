"""When a schedule runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from store.errors import InvalidInput
from store.timetable import Timetable, read_timetable

NOON = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)


def test_an_occurrence_is_the_latest_at_its_own_moment_and_not_after_it() -> None:
    daily = Timetable("0 12 * * *", None)
    assert daily.latest(NOON) == NOON
    assert daily.latest(NOON - timedelta(microseconds=1)) == NOON - timedelta(days=1)
    assert daily.latest(NOON + timedelta(seconds=0.5)) == NOON
    assert daily.after(NOON) == NOON + timedelta(days=1)


def test_hours_are_those_of_the_timezone_also_when_clocks_change() -> None:
    nine = Timetable("0 9 * * *", None, "Europe/Berlin")
    assert nine.after(datetime(2026, 10, 24, 12, tzinfo=UTC)) == datetime(2026, 10, 25, 8, tzinfo=UTC)
    assert nine.after(datetime(2026, 10, 23, 12, tzinfo=UTC)) == datetime(2026, 10, 24, 7, tzinfo=UTC)


def test_a_moment_without_an_offset_is_in_the_timezone_and_whole_seconds() -> None:
    then = read_timetable(None, "2026-12-01T09:00:00.2", "Europe/Berlin")
    assert then.at == datetime(2026, 12, 1, 8, 0, 1, tzinfo=UTC)
    assert then.pattern == "1 0 8 1 12 *"
    assert then.after(NOON) == then.at
    assert then.latest(NOON) is None


@pytest.mark.parametrize("cron", ["@daily", "R * * * *", "R(0-5) * * * *", "0 0 1 1 * * 2030", "", "* * * * 9"])
def test_what_is_not_five_or_six_plain_fields_is_refused(cron: str) -> None:
    with pytest.raises(InvalidInput):
        read_timetable(cron, None, "UTC")


@pytest.mark.parametrize("cron", ["*/5 * * * *", "0 9 * * thu", "0 9 1 MAR,APR *", "*/2 * * * * *"])
def test_names_and_steps_are_plain(cron: str) -> None:
    assert read_timetable(f"  {cron} ", None, "UTC").cron == cron
