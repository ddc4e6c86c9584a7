"""Deploys strand nothing: old and new workers side by side, again and again, under load."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable

import psycopg

from agent.client import AgentClient, Task
from tests.workers import Place, Worker, eventually

Hire = Callable[..., Worker]
AGENT = "tests.agents:poison"
SESSIONS = 30
DEPLOYS = 10


def test_ten_deploys_in_a_row_under_load_lose_repeat_and_blame_nothing(
    client: AgentClient, place: Place, db: psycopg.Connection, hire: Hire
) -> None:
    old = hire(AGENT, drain_seconds=0.2)
    tasks: list[Task] = []
    for deploy in range(DEPLOYS):
        done = len(place.world("ran"))
        new = hire(AGENT, drain_seconds=0.2)
        tasks += [client.enqueue("poison", f"work {deploy}", session=f"s-{number}") for number in range(SESSIONS)]
        eventually(lambda done=done: len(place.world("ran")) > done)
        old.process.send_signal(signal.SIGTERM)
        assert old.process.wait(30) == 0
        old = new
    for task in tasks:
        assert str(task.result(timeout=120)).endswith(": done")

    effects = Counter(line["key"] for line in place.world("world"))
    assert len(effects) == 3 * SESSIONS * DEPLOYS, "nothing is lost"
    assert set(effects.values()) == {1}, "nothing is repeated"
    assert db.execute("SELECT sum(crashes) FROM agent.tasks").fetchall() == [(0,)]
    interrupted, told = db.execute(
        "SELECT (SELECT count(*) FROM agent.journal WHERE kind = 'worker.stopped'),"
        " (SELECT sum(times) FROM agent.notices)"
    ).fetchall()[0]
    assert interrupted == told > 0, "every interruption is told, those in quick succession together"
    assert db.execute("SELECT DISTINCT kind FROM agent.notices").fetchall() == [("planned",)]
    for number in range(SESSIONS):
        finished = [event.task_id for event in client.session(f"s-{number}").events() if event.kind == "task.finished"]
        assert finished == [task.id for task in tasks[number::SESSIONS]], "in order"
