"""Several workers on one database: the living finish what the dead began, in order, and zombies record nothing."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import psycopg
from dbos import DBOSClient

from agent.client import AgentClient
from agent.serializer import client as open_dbos_client
from tests.workers import Place, Worker, eventually

Hire = Callable[..., Worker]


def test_a_killed_workers_twenty_sessions_are_finished_by_the_other_in_order(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Hire
) -> None:
    doomed = hire("tests.agents:gate")
    sessions = [f"session-{number}" for number in range(20)]
    tasks = [client.enqueue("gate", f"{turn}", session=name) for turn in range(3) for name in sessions]
    eventually(lambda: len(place.world("ran")) == 20)
    survivor = hire("tests.agents:gate")
    doomed.kill()
    (place.folder / "open").write_text("")

    assert [task.result(timeout=90) for task in tasks] == ["passed"] * 60

    assert survivor.process.poll() is None
    assert count(db, "SELECT count(*) FROM agent.tasks WHERE crashes > 0") == 20
    overlapping = """
        SELECT count(*) FROM agent.tasks a JOIN agent.tasks b ON a.session_id = b.session_id AND a.seq < b.seq
        WHERE b.started_at < a.finished_at"""
    assert count(db, overlapping) == 0
    for name in sessions:
        done = [row.input for row in client.session(name).tasks()]
        assert done == ["0", "1", "2"]


def test_a_frozen_worker_that_wakes_up_records_nothing_of_what_was_adopted(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Hire
) -> None:
    zombie = hire("tests.agents:gate")
    task = client.enqueue("gate", "go")
    eventually(lambda: place.world("ran"))
    os.kill(zombie.pid, signal.SIGSTOP)
    rescuer = hire("tests.agents:gate")
    eventually(lambda: len(place.world("ran")) == 2)
    adopted_by = client.task(task.id).read().worker_id
    before = journal_of(db, task.id)

    os.kill(zombie.pid, signal.SIGCONT)
    eventually(lambda: count(db, "SELECT count(*) FROM agent.workers WHERE state = 'alive'") == 2)
    (place.folder / "open").write_text("")

    assert task.result(timeout=30) == "passed"
    row = client.task(task.id).read()
    assert (row.worker_id, row.steps, row.crashes) == (adopted_by, 3, 1)
    later = [kind for kind in journal_of(db, task.id)[len(before) :] if kind != "handoff.written"]
    assert later == ["tool.finished", "model.responded", "task.finished"]
    assert {line["key"] for line in place.world("ran")} == {place.world("ran")[0]["key"]}
    assert rescuer.process.poll() is None

    again = client.enqueue("gate", "again")
    assert again.result(timeout=30) == "passed"
    assert zombie.process.poll() is None, "the zombie goes on under a new id"


def test_a_worker_on_another_machine_is_adopted_after_two_silent_intervals(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    hire("tests.agents:echo")
    db.execute(
        "INSERT INTO agent.workers (worker_id, host, pid, process, version, beat_seconds)"
        " VALUES ('elsewhere', 'elsewhere', 1, 'elsewhere/1', 'x', 1)"
    )
    eventually(lambda: state(db, "elsewhere") == "dead")
    silent = count(
        db, "SELECT extract(epoch FROM clock_timestamp() - beat_at) FROM agent.workers WHERE worker_id = 'elsewhere'"
    )
    assert silent >= 2


def test_a_planned_stop_gives_running_tasks_back_without_a_crash(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Hire
) -> None:
    first = hire("tests.agents:gate", drain_seconds=0.2)
    task = client.enqueue("gate", "go")
    eventually(lambda: place.world("ran"))

    assert first.stop() == 0

    assert state_of_all(db) == ["stopped"]
    assert task.status() == "queued"
    (place.folder / "open").write_text("")
    hire("tests.agents:gate")
    assert task.result(timeout=30) == "passed"
    row = client.task(task.id).read()
    assert row.crashes == 0
    assert "worker.stopped" in journal_of(db, task.id)


def test_a_planned_stop_lets_running_tasks_finish(client: AgentClient, place: Place, hire: Hire) -> None:
    worker = hire("tests.agents:gate", drain_seconds=30)
    task = client.enqueue("gate", "go")
    eventually(lambda: place.world("ran"))
    worker.process.send_signal(signal.SIGTERM)
    eventually(lambda: client.living_workers()[0].state == "draining")
    (place.folder / "open").write_text("")

    assert worker.process.wait(30) == 0

    assert task.status() == "done"
    assert len(place.world("ran")) == 1


def test_a_reused_pid_is_no_proof_of_life(client: AgentClient, db: psycopg.Connection, hire: Hire) -> None:
    worker = hire("tests.agents:echo", heartbeat_seconds=60)
    mine = eventually(lambda: client.living_workers())[0]
    place_of, pid, start = mine.process.rsplit("/", 2)
    db.execute(
        "INSERT INTO agent.workers (worker_id, host, pid, process, version, beat_seconds)"
        " VALUES ('ghost', 'h', %s, %s, 'x', 3600)",
        [pid, f"{place_of}/{pid}/{float(start) - 100:.2f}"],
    )
    hire("tests.agents:echo")
    eventually(lambda: state(db, "ghost") == "dead")
    assert state(db, mine.worker_id) == "alive"
    assert worker.process.poll() is None


def test_a_claim_that_never_began_is_queued_again(client: AgentClient, db: psycopg.Connection, hire: Hire) -> None:
    hire("tests.agents:echo")
    [worker] = eventually(client.living_workers)
    with db.transaction():
        task = client.enqueue("echo", "hi", connection=db)
        db.execute("SET CONSTRAINTS ALL IMMEDIATE")
        db.execute(
            "UPDATE dbos.workflow_status SET status = 'PENDING', executor_id = %s, owner_xid = 'lost',"
            " started_at_epoch_ms = 1 WHERE workflow_uuid = %s",
            [worker.worker_id, task.id],
        )
    assert task.result(timeout=30) == "turn 1: hi"


def test_a_worker_that_is_merely_busy_is_not_taken_for_dead(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Hire
) -> None:
    hire("tests.agents:busy")
    task = client.enqueue("busy", "go")
    eventually(lambda: place.world("ran"))
    hire("tests.agents:echo")
    assert task.result(timeout=30) == "paid"
    assert len(place.world("ran")) == 1
    assert task.read().crashes == 0


def test_a_task_waits_for_a_worker_that_serves_its_agent(client: AgentClient, hire: Hire) -> None:
    hire("tests.agents:echo")
    hire("tests.agents:steady")
    tasks = [client.enqueue("steady", f"{number}") for number in range(4)]
    assert [task.result(timeout=60) for task in tasks] == [f"{number}: 5 ticks" for number in range(4)]


def test_dbos_resume_neither_runs_tasks_side_by_side_nor_strands_them(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Hire
) -> None:
    first = hire("tests.agents:gate")
    task = client.enqueue("gate", "go", session="s-1")
    following = client.enqueue("gate", "then", session="s-1")
    eventually(lambda: place.world("ran"))
    first.kill()
    with dbos_client(place.url) as dbos:
        dbos.cancel_workflow(task.id)
        dbos.resume_workflow(task.id)
    (place.folder / "open").write_text("")
    hire("tests.agents:gate")
    assert task.result(timeout=30) == "passed"
    assert following.result(timeout=30) == "passed"
    queues = db.execute("SELECT DISTINCT queue_name FROM dbos.workflow_status").fetchall()
    assert queues == [("perdure",)]
    resumed = [event for event in client.session("s-1").events() if event.kind in ("task.resumed", "task.finished")]
    assert [event.kind for event in resumed].count("task.finished") == 2


def test_another_application_on_the_same_database_disturbs_nothing(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    hire("tests.agents:echo")
    db.execute(
        "INSERT INTO dbos.application_versions (version_id, version_name, version_timestamp)"
        " VALUES ('other', 'other-9', 99999999999999)"
    )
    assert client.enqueue("echo", "hi").result(timeout=30) == "turn 1: hi"


def test_each_worker_keeps_its_own_concurrency(client: AgentClient, place: Place, hire: Hire) -> None:
    roomy = hire("tests.agents:gate", concurrency=3)
    hire("tests.agents:gate", concurrency=1)
    for _ in range(8):
        client.enqueue("gate", "go")
    eventually(lambda: sum(line["pid"] == roomy.pid for line in place.world("ran")) >= 3)


@contextlib.contextmanager
def dbos_client(url: str) -> Iterator[DBOSClient]:
    made = open_dbos_client(url)
    yield made
    made.destroy()


def count(db: psycopg.Connection, sql: str) -> int:
    row = db.execute(sql).fetchone()
    assert row is not None
    return row[0]


def journal_of(db: psycopg.Connection, task: str) -> list[str]:
    return [row[0] for row in db.execute("SELECT kind FROM agent.journal WHERE task_id = %s ORDER BY seq", [task])]


def state(db: psycopg.Connection, worker: str) -> str | None:
    row = db.execute("SELECT state FROM agent.workers WHERE worker_id = %s", [worker]).fetchone()
    return row[0] if row else None


def state_of_all(db: psycopg.Connection) -> list[str]:
    return [row[0] for row in db.execute("SELECT state FROM agent.workers")]
