"""Inputs that come by the clock: each occurrence once, whoever dies; and a time without workers as it was agreed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from agent.client import AgentClient
from store.errors import Conflict, InvalidInput, NotAllowed, NotFound, PerdureError
from store.types import Missed, ScheduleRow, TaskRow
from tests.workers import ROOT, Place, Worker, eventually

Hire = Callable[..., Worker]
ECHO = "tests.agents:echo"
EVERY_SECOND = "* * * * * *"
YEARLY = "0 0 1 1 *"
NEW_YEAR = datetime(datetime.now(UTC).year, 1, 1, tzinfo=UTC)
A_YEAR_AGO, LONG_AGO = (NEW_YEAR.replace(year=NEW_YEAR.year - n) for n in (1, 7))
PROMPT = timedelta(seconds=5)


@pytest.fixture(autouse=True)
def known(db: psycopg.Connection) -> None:
    """The agent is known from an earlier life of the service."""
    db.execute("INSERT INTO agent.agents (name) VALUES ('echo')")


def done(client: AgentClient, count: int) -> list[TaskRow]:
    """The tasks, oldest first, once so many are done."""
    eventually(lambda: len(client.tasks(status="done")) >= count)
    return client.tasks(limit=1000)[::-1]


def only(client: AgentClient) -> ScheduleRow:
    [row] = client.schedules()
    return row


def keys(db: psycopg.Connection) -> list[str]:
    return [key for (key,) in db.execute("SELECT idempotency_key FROM agent.tasks ORDER BY 1").fetchall()]


def occurrences(db: psycopg.Connection) -> list[datetime]:
    return [datetime.fromisoformat(key.split(":", 2)[2]) for key in keys(db)]


def as_if_due(db: psycopg.Connection, moment: datetime) -> None:
    """Nobody has looked at the schedules since before this moment."""
    before = (moment - timedelta(seconds=1)).isoformat()
    db.execute("UPDATE agent.schedules SET next_at = %s", (moment,))
    db.execute("UPDATE dbos.workflow_schedules SET last_fired_at = %s", (before,))


def fired(db: psycopg.Connection, name: str, how: str = "%") -> set[datetime]:
    """The occurrences of a schedule that DBOS has fired, or that were owed after a start."""
    runs = db.execute(
        "SELECT workflow_uuid FROM dbos.workflow_status WHERE name = 'fire_schedule' AND workflow_uuid LIKE %s",
        (f"{how}{name}-%",),
    ).fetchall()
    return {datetime.fromisoformat(run.split(f"{name}-", 1)[1]).astimezone(UTC) for (run,) in runs}


def test_two_workers_fire_each_occurrence_once_and_on_time(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    hire(ECHO), hire(ECHO)
    created = datetime.now(UTC)
    client.schedule("tick", "echo", "tick", cron=EVERY_SECOND, session="s-1", user="ana")
    eventually(lambda: len(client.tasks(limit=1000)) >= 6)
    client.unschedule("tick")
    tasks = done(client, 6)
    assert {(task.session_id, task.user_id, task.input) for task in tasks} == {("s-1", "ana", "tick")}
    times = occurrences(db)
    assert times == [times[0] + timedelta(seconds=n) for n in range(len(times))], "each second, and none twice"
    assert times[0] - created <= timedelta(seconds=1), "also the ones before the workers knew of it"
    assert all(task.accepted_at - time < PROMPT for task, time in zip(tasks, times, strict=True))


def test_a_schedule_made_before_any_worker_runs_when_there_is_one(client: AgentClient, hire: Hire) -> None:
    made = client.schedule("tick", "echo", "tick", cron="*/2 * * * * *")
    assert made.next_at is not None and made.last_at is None
    hire(ECHO)
    tasks = done(client, 2)
    assert len({task.session_id for task in tasks}) == len(tasks), "each run is a session of its own"
    row = only(client)
    assert row.last_at is not None and row.next_at is not None and row.next_at > row.last_at
    assert row.last_task_id in {task.task_id for task in client.tasks()}


def test_a_worker_killed_again_and_again_loses_nothing_it_has_fired(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    client.schedule("tick", "echo", "tick", cron=EVERY_SECOND)
    for lives in range(1, 4):
        worker = hire(ECHO)
        eventually(lambda lives=lives: len(fired(db, "tick")) >= 2 * lives)
        worker.kill()
    db.execute("UPDATE agent.schedules SET cron = %s, next_at = now() + interval '1 year'", (YEARLY,))
    db.execute("UPDATE dbos.workflow_schedules SET schedule = %s", (YEARLY,))
    hire(ECHO)
    unfinished = "SELECT 1 FROM dbos.workflow_status WHERE name = 'fire_schedule' AND status <> 'SUCCESS'"
    eventually(lambda: db.execute(unfinished).fetchone() is None)
    wanted = fired(db, "tick")
    assert set(occurrences(db)) == wanted
    assert len(keys(db)) == len(wanted)


def test_an_occurrence_fired_just_before_the_kill_runs_later(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    client.schedule("yearly", "echo", "a year", cron=YEARLY)
    fired_at = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    db.execute(
        "SELECT agent.care('fire_schedule', %s, to_json(%s::text), to_json('yearly'::text))",
        ("sched-perdure:yearly-1", fired_at.isoformat()),
    )
    db.execute(
        "UPDATE dbos.workflow_status SET status = 'PENDING', executor_id = 'gone', created_at = %s",
        (fired_at.timestamp() * 1000 + 50,),
    )
    hire(ECHO)
    done(client, 1)
    assert occurrences(db) == [fired_at]


@pytest.mark.parametrize("missed", ["skip", "once"])
def test_a_time_without_workers(client: AgentClient, db: psycopg.Connection, hire: Hire, missed: Missed) -> None:
    client.schedule("yearly", "echo", "a year", cron=YEARLY, missed=missed)
    as_if_due(db, LONG_AGO)
    hire(ECHO), hire(ECHO)
    eventually(lambda: (due := only(client).next_at) is not None and due > datetime.now(UTC))
    client.schedule("sign", "echo", "seen", cron=EVERY_SECOND)
    eventually(lambda: client.schedules() and any(task.input == "seen" for task in client.tasks(status="done")))
    made_up = [task for task in client.tasks(limit=1000) if task.input == "a year"]
    if missed == "skip":
        assert made_up == []
        assert fired(db, "yearly") == set(), "nor was it even fired"
    else:
        [task] = made_up
        assert task.task_id in {row.last_task_id for row in client.schedules()}
        assert f"schedule:yearly:{NEW_YEAR:%Y-%m-%dT%H:%M:%S}.000000+00:00" in keys(db), "the last of them"


@pytest.mark.parametrize("missed", ["skip", "once"])
def test_a_real_pause_between_two_workers(
    client: AgentClient, db: psycopg.Connection, hire: Hire, missed: Missed
) -> None:
    worker = hire(ECHO)
    client.schedule("tick", "echo", "tick", cron=EVERY_SECOND, missed=missed)
    done(client, 1)
    worker.stop()
    stopped = datetime.now(UTC)
    eventually(lambda: datetime.now(UTC) > stopped + timedelta(seconds=4))
    resumed = datetime.now(UTC)
    hire(ECHO)
    eventually(lambda: any(moment > resumed + timedelta(seconds=2) for moment in occurrences(db)))
    owed = fired(db, "tick", "owed-")
    if missed == "once":
        assert len(owed) == 1
    assert [moment for moment in occurrences(db) if stopped < moment < resumed and moment not in owed] == []


def test_what_a_worker_saw_and_could_not_fire_is_made_up_even_when_missed_ones_are_skipped(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    client.schedule("yearly", "echo", "a year", cron=YEARLY)
    as_if_due(db, A_YEAR_AGO)
    db.execute(
        "INSERT INTO agent.workers (worker_id, host, pid, process, version, state, beat_seconds, started_at, beat_at)"
        " VALUES ('gone', 'h', 1, 'p', 'v', 'dead', 5, %s, %s)",
        (A_YEAR_AGO - timedelta(hours=1), A_YEAR_AGO - timedelta(seconds=2)),
    )
    hire(ECHO)
    done(client, 1)
    assert occurrences(db) == [A_YEAR_AGO]


@pytest.mark.parametrize("missed", ["skip", "once"])
def test_occurrences_fired_in_a_burst_after_a_worker_slept_count_as_missed(
    client: AgentClient, db: psycopg.Connection, hire: Hire, missed: Missed
) -> None:
    client.schedule("yearly", "echo", "a year", cron=YEARLY, missed=missed)
    for moment in (LONG_AGO, A_YEAR_AGO, NEW_YEAR):
        db.execute(
            "SELECT agent.care('fire_schedule', %s, to_json(%s::text), to_json('yearly'::text))",
            (f"burst-{moment.year}", moment.isoformat()),
        )
    hire(ECHO)
    burst = "SELECT 1 FROM dbos.workflow_status WHERE workflow_uuid LIKE 'burst-%' AND status <> 'SUCCESS'"
    eventually(lambda: db.execute(burst).fetchone() is None)
    assert occurrences(db) == ([NEW_YEAR] if missed == "once" else [])


def test_at_a_moment_runs_once_and_is_over(client: AgentClient, db: psycopg.Connection, hire: Hire) -> None:
    hire(ECHO)
    moment = datetime.now(UTC) + timedelta(seconds=3)
    made = client.schedule("then", "echo", "now", at=moment, session="s-1")
    assert made.next_at == made.at and made.at is not None and made.at >= moment
    [task] = done(client, 1)
    assert timedelta(0) <= task.accepted_at - made.at < PROMPT
    row = only(client)
    assert (row.next_at, row.last_at, row.last_task_id) == (None, made.at, task.task_id)
    assert db.execute("SELECT count(*) FROM dbos.workflow_schedules").fetchone() == (0,)


def test_the_name_of_a_moment_that_is_over_can_be_used_again(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    hire(ECHO)
    client.schedule("then", "echo", "first", at=datetime.now(UTC) + timedelta(seconds=3), session="s-1")
    with pytest.raises(Conflict, match="already a schedule 'then'"):
        client.schedule("then", "echo", "too early", cron=YEARLY)
    done(client, 1)
    client.schedule("then", "echo", "second", at=datetime.now(UTC) + timedelta(seconds=3), session="s-1")
    assert [task.input for task in done(client, 2)] == ["first", "second"]
    client.schedule("then", "echo", "third", cron=YEARLY)
    assert (only(client).input, only(client).at, only(client).last_task_id) == ("third", None, None)
    with pytest.raises(Conflict, match="already a schedule 'then'"):
        client.schedule("then", "echo", "fourth", cron=YEARLY)
    assert db.execute("SELECT schedule_name FROM dbos.workflow_schedules").fetchall() == [("perdure:then",)]


def test_a_moment_whose_run_is_still_owed_keeps_its_name(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    client.schedule("then", "echo", "owed", at=datetime.now(UTC) + timedelta(hours=1), missed="once")
    past = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    db.execute("UPDATE agent.schedules SET at = %s, next_at = %s", (past, past))
    db.execute("SELECT agent.catch_up('then', %s, %s, NULL)", (past, past))
    assert only(client).next_at is None
    with pytest.raises(Conflict, match="already a schedule 'then'"):
        client.schedule("then", "echo", "in its place", cron=YEARLY)
    hire(ECHO)
    assert [task.input for task in done(client, 1)] == ["owed"]
    assert client.schedule("then", "echo", "in its place", cron=YEARLY).last_task_id is None


@pytest.mark.parametrize("missed", ["skip", "once"])
def test_a_moment_without_workers(client: AgentClient, db: psycopg.Connection, hire: Hire, missed: Missed) -> None:
    client.schedule("then", "echo", "now", at=datetime.now(UTC) + timedelta(hours=1), missed=missed)
    past = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    db.execute("UPDATE agent.schedules SET at = %s", (past,))
    as_if_due(db, past)
    hire(ECHO)
    if missed == "once":
        done(client, 1)
    eventually(lambda: only(client).next_at is None)
    assert len(client.tasks()) == (1 if missed == "once" else 0)


def test_a_closed_session_raises_an_alert_until_a_run_succeeds(client: AgentClient, hire: Hire) -> None:
    hire(ECHO)
    client.enqueue("echo", "hello", session="s-1").result(60)
    client.schedule("tick", "echo", "tick", cron=EVERY_SECOND, session="s-1")
    done(client, 2)
    client.close_session("s-1")
    [alert] = eventually(client.alerts)
    assert alert.key == "schedule:tick"
    assert "session 's-1' is closed" in alert.what
    assert only(client).problem is not None
    client.reopen("s-1")
    eventually(lambda: not client.alerts())
    assert only(client).problem is None


def test_an_agent_that_nobody_serves_any_more_raises_an_alert(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    db.execute("INSERT INTO agent.agents (name) VALUES ('retired')")
    client.schedule("tick", "retired", "tick", cron=EVERY_SECOND)
    hire(ECHO)
    [alert] = eventually(client.alerts)
    assert "no worker serves agent 'retired' any more" in alert.what
    assert client.tasks() == []
    client.unschedule("tick")
    assert client.alerts() == [], "what is gone needs nobody"


def test_another_users_session_is_refused_at_once_and_later_by_an_alert(
    client: AgentClient, hire: Hire, db: psycopg.Connection
) -> None:
    hire(ECHO)
    client.schedule("tick", "echo", "tick", cron=EVERY_SECOND, session="s-1", user="ana")
    done(client, 1)
    with pytest.raises(NotAllowed, match="another user"):
        client.schedule("tock", "echo", "tock", cron=EVERY_SECOND, session="s-1", user="ben")
    db.execute("UPDATE agent.sessions SET user_id = 'ben'")
    [alert] = eventually(client.alerts)
    assert "belongs to another user" in alert.what


def test_a_schedule_that_is_removed_runs_no_more(client: AgentClient, db: psycopg.Connection, hire: Hire) -> None:
    hire(ECHO)
    client.schedule("tick", "echo", "tick", cron=EVERY_SECOND)
    client.schedule("tock", "echo", "tock", cron=EVERY_SECOND)
    done(client, 2)
    client.unschedule("tick")
    ticks = sum(task.input == "tick" for task in client.tasks(limit=1000))
    tocks = sum(task.input == "tock" for task in client.tasks(limit=1000))
    eventually(lambda: sum(task.input == "tock" for task in client.tasks(limit=1000)) >= tocks + 5)
    assert sum(task.input == "tick" for task in client.tasks(limit=1000)) == ticks
    with pytest.raises(NotFound, match="there is no schedule 'tick'"):
        client.unschedule("tick")


WRONG: list[tuple[dict[str, Any], type[PerdureError], str]] = [
    ({}, InvalidInput, "either a cron expression or a moment"),
    ({"cron": YEARLY, "at": "2099-01-01T00:00:00Z"}, InvalidInput, "either a cron expression or a moment"),
    ({"cron": "61 * * * *"}, InvalidInput, "no cron expression"),
    ({"cron": "* * * *"}, InvalidInput, "no cron expression"),
    ({"cron": "R * * * *"}, InvalidInput, "no cron expression"),
    ({"cron": "0 0 31 2 *"}, InvalidInput, "never comes"),
    ({"cron": YEARLY, "timezone": "Mars/Base"}, InvalidInput, "no timezone 'Mars/Base'"),
    ({"at": "2020-01-01T00:00:00Z"}, InvalidInput, "2020-01-01T00:00:00Z is in the past"),
    ({"at": "tomorrow"}, InvalidInput, "'tomorrow' is no moment"),
    ({"cron": YEARLY, "agent": "nobody"}, NotFound, "no agent named 'nobody'"),
    ({"cron": YEARLY, "name": "taken"}, Conflict, "already a schedule 'taken'"),
    ({"cron": YEARLY, "name": "a b"}, InvalidInput, "the name of a schedule"),
    ({"cron": YEARLY, "missed": "all"}, InvalidInput, "allowed are skip and once"),
    ({"cron": YEARLY, "input": " "}, InvalidInput, "the input is empty"),
]


def test_bad_input_is_refused_and_nothing_is_written(client: AgentClient, db: psycopg.Connection) -> None:
    client.schedule("taken", "echo", "first", cron=YEARLY)
    for given, error, words in WRONG:
        arguments: dict[str, Any] = {"name": "new", "agent": "echo", "input": "x", **given}
        with pytest.raises(error, match=words):
            client.schedule(**arguments)
    assert [row.input for row in client.schedules()] == ["first"]
    assert db.execute("SELECT count(*) FROM dbos.workflow_schedules").fetchone() == (1,)


def test_the_command_line(client: AgentClient, place: Place) -> None:
    def perdure(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "agent", "schedule", *words],
            cwd=ROOT, env=place.environment([ECHO]), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    assert perdure().stdout == "No schedules.\n"
    added = perdure("add", "monday", "echo", "a week", "--cron", "0 9 * * 1", "--timezone", "Europe/Berlin",
                    "--session", "s-1", "--user", "ana", "--missed", "once")  # fmt: skip
    assert added.returncode == 0, added.stderr
    assert "09:00:00 CE" in added.stdout
    assert "No worker is alive" in added.stderr
    assert perdure("add", "then", "echo", "once", "--at", "2099-12-01T09:00:00Z").returncode == 0
    listed = json.loads(perdure("--json").stdout)
    assert [(row["name"], row["missed"], row["session_id"]) for row in listed] == [
        ("monday", "once", "s-1"), ("then", "skip", None)
    ]  # fmt: skip
    assert "0 9 * * 1 Europe/Berlin" in perdure().stdout
    wrong = perdure("add", "x", "echo", "x", "--cron", "nonsense")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("perdure: 'nonsense' is no cron expression")
    assert len(wrong.stderr.splitlines()) == 2
    assert perdure("remove", "monday").stdout == "Removed.\n"
    assert perdure("remove", "monday").returncode == 1
    assert [row.name for row in client.schedules()] == ["then"]
