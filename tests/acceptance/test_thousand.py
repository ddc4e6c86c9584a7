"""A thousand tasks in flight on one worker, killed with -9: all end done, none in an error of the engine's making."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg

from agent.client import AgentClient
from tests.workers import Place, Worker, eventually

TASKS = 1000


def test_a_thousand_tasks_in_flight_survive_kill_9(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Callable[..., Worker]
) -> None:
    first = hire("tests.agents:gate", concurrency=TASKS)
    with psycopg.connect(place.url) as connection:
        for _ in range(TASKS):
            client.enqueue("gate", "go", connection=connection)
    eventually(lambda: len(place.world("ran")) == TASKS)
    first.kill()
    (place.folder / "ran.jsonl").unlink()

    began = time.monotonic()
    hire("tests.agents:gate", concurrency=TASKS)
    eventually(lambda: len(place.world("ran")) == TASKS, patience=240)
    resumed = time.monotonic() - began
    (place.folder / "open").write_text("")
    eventually(lambda: statuses(db) == {"SUCCESS": TASKS}, patience=240)
    finished = time.monotonic() - began

    print(
        f"\n{TASKS} tasks: all resumed {resumed:.1f} s after the start of the process, all done after {finished:.1f} s"
    )
    [(done, crashed, steps)] = db.execute(
        "SELECT count(*) FILTER (WHERE outcome = 'done'), count(*) FILTER (WHERE crashes = 1),"
        " (SELECT count(*) FROM agent.step_log) FROM agent.tasks"
    ).fetchall()
    assert (done, crashed, steps) == (TASKS, TASKS, 3 * TASKS)


def statuses(db: psycopg.Connection) -> dict[str, int]:
    counted = "SELECT status, count(*) FROM dbos.workflow_status WHERE name = 'run_task' GROUP BY status"
    return dict(db.execute(counted).fetchall())
