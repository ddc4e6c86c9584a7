"""A task that takes its worker down is found and set aside; those that merely ran beside it finish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

from agent.client import AgentClient, Task
from store.errors import Conflict, TaskFailed
from tests.workers import Place, Worker, eventually, keep_alive

Hire = Callable[..., Worker]
AGENT = "tests.agents:poison"


def innocents(client: AgentClient, count: int) -> list[Task]:
    return [client.enqueue("poison", f"work {number}", session=f"innocent-{number}") for number in range(count)]


def assert_unharmed(tasks: list[Task], place: Place, steps: int) -> None:
    for task in tasks:
        assert str(task.result(timeout=120)).endswith(": done")
        assert task.read().crashes <= 1, "who was tried and survived has a clean record"
    effects = Counter(line["key"] for line in place.world("world"))
    assert len(effects) == steps * len(tasks)
    assert set(effects.values()) == {1}, "every effect once"


@pytest.mark.parametrize(
    ("deed", "ending"),
    [("leave", "exit status 3"), ("segfault", "killed by SIGSEGV"), ("devour", "more than 300 MB of memory")],
)
def test_a_task_that_kills_its_worker_is_set_aside_and_nobody_else_is_harmed(
    client: AgentClient, place: Place, db: psycopg.Connection, deed: str, ending: str
) -> None:
    with keep_alive(place, [AGENT], memory_mb=600, isolation_memory_mb=300):
        working = innocents(client, 50)
        eventually(lambda: place.world("ran"))
        guilty = client.enqueue("poison", f"{deed} now", session="guilty")
        after = client.enqueue("poison", "are you there?", session="guilty")
        with pytest.raises(TaskFailed, match="it killed its worker, alone in a process of its own"):
            guilty.result(timeout=120)
        assert after.result(timeout=60) == "answered: are you there?"
        assert_unharmed(working, place, steps=3)
    assert len(place.world("deaths")) <= 3
    [letter] = client.dead_letters()
    assert letter.task_id == guilty.id
    assert ending in letter.evidence["exit"]
    assert letter.evidence["attempts"] == 3
    assert letter.evidence["last_step"] == "poison__model.request"
    assert "dead" in [notice.kind for notice in client.session("guilty").notices()]
    [alert] = client.alerts()
    assert guilty.id in alert.what
    listed = db.execute("SELECT status FROM dbos.workflow_status WHERE workflow_uuid = %s", [guilty.id]).fetchall()
    assert listed == [("MAX_RECOVERY_ATTEMPTS_EXCEEDED",)]


def test_two_poisons_at_once_are_both_found(client: AgentClient, place: Place) -> None:
    with keep_alive(place, [AGENT]):
        working = innocents(client, 10)
        eventually(lambda: place.world("ran"))
        guilty = [client.enqueue("poison", "leave now", session=f"guilty-{number}") for number in range(2)]
        for task in guilty:
            with pytest.raises(TaskFailed, match="it killed its worker"):
                task.result(timeout=120)
        assert_unharmed(working, place, steps=3)
    assert {letter.task_id for letter in client.dead_letters()} == {task.id for task in guilty}


def test_a_dead_letter_is_tried_again_from_its_records_or_with_other_words(client: AgentClient, place: Place) -> None:
    with keep_alive(place, [AGENT]):
        first = client.enqueue("poison", "leave now", session="s-1")
        second = client.enqueue("poison", "leave too", session="s-2")
        for task in (first, second):
            with pytest.raises(TaskFailed):
                task.result(timeout=120)
        (place.folder / "healed").write_text("")
        assert client.retry(first.id).id == first.id
        assert first.result(timeout=60) == "leave now: done"
        other = client.retry(second.id, input="never mind")
        assert other.result(timeout=60) == "answered: never mind"
        assert second.result(timeout=60) == "answered: never mind", (
            "who waits for the old one gets the new one's answer"
        )
        third = client.enqueue("poison", "hello", session="s-1")
        assert third.result(timeout=60) == "answered: hello"
    assert client.dead_letters() == []
    assert client.alerts() == [], "all resolved"
    assert "task.retried" in [event.kind for event in client.session("s-1").events()]


def test_a_task_that_dbos_gave_up_is_a_dead_letter_too(
    client: AgentClient, place: Place, db: psycopg.Connection, hire: Hire
) -> None:
    hire("tests.agents:echo").stop()
    task = client.enqueue("echo", "hello", session="s-1")
    given_up = "UPDATE dbos.workflow_status SET status = 'MAX_RECOVERY_ATTEMPTS_EXCEEDED' WHERE workflow_uuid = %s"
    db.execute(given_up, [task.id])
    [letter] = client.dead_letters()
    assert (letter.task_id, letter.reason) == (task.id, "restarted too often")
    with pytest.raises(Conflict, match="not a dead letter"):
        client.retry(client.enqueue("echo", "another", session="s-2").id)
    client.retry(task.id)
    hire("tests.agents:echo")
    assert task.result(timeout=30) == "turn 1: hello"


def test_a_discarded_dead_letter_is_gone_for_good(client: AgentClient, db: psycopg.Connection, hire: Hire) -> None:
    hire("tests.agents:echo").stop()
    task = client.enqueue("echo", "hello", session="s-1")
    db.execute("SELECT agent.bury(%s, 'it was bad', '{\"reason\": \"crash\"}')", [task.id])
    assert client.alerts()
    client.discard(task.id, reason="a test")
    assert client.dead_letters() == [] and client.alerts() == []
    with pytest.raises(TaskFailed, match="cancelled: discarded: a test: it was bad"):
        task.result(timeout=5)
    assert "task.discarded" in [event.kind for event in client.session("s-1").events()]


def test_a_planned_stop_during_a_trial_convicts_nobody(
    client: AgentClient, place: Place, db: psycopg.Connection, hire: Hire
) -> None:
    hire("tests.agents:gate").stop()
    task = client.enqueue("gate", "go", session="s-1")
    db.execute("UPDATE agent.tasks SET is_isolated = true, crashes = 1")
    db.execute("SELECT agent.place_task(%s)", [task.id])
    worker = hire("tests.agents:gate", drain_seconds=7)
    [line] = eventually(lambda: place.world("ran"))
    assert line["pid"] != worker.pid, "it is tried in a process of its own"

    assert worker.stop() == 0

    assert task.status() == "queued", "the worker waits for it as long as for any other"
    on_trial = "SELECT state, ended FROM agent.workers WHERE role = 'isolated'"
    assert db.execute(on_trial).fetchall() == [("stopped", None)]
    (place.folder / "open").write_text("")
    hire("tests.agents:gate")
    assert task.result(timeout=60) == "passed"
    assert client.dead_letters() == []
    assert "worker.died" not in [event.kind for event in client.session("s-1").events()]


def test_a_tool_that_only_reads_is_blamed_too(client: AgentClient, db: psycopg.Connection, hire: Hire) -> None:
    doomed = hire(AGENT)
    client.enqueue("poison", "peek inside", session="s-1")
    assert doomed.process.wait(30) == 3
    hire(AGENT, backoff_seconds=600)
    crashed = "SELECT session_id, tool FROM agent.crashes"
    assert eventually(lambda: db.execute(crashed).fetchall()) == [("s-1", "peek")]


def test_a_task_that_was_innocent_of_many_restarts_is_not_given_up_by_dbos(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    hire("tests.agents:echo").stop()
    task = client.enqueue("echo", "hello", session="s-1")
    db.execute("UPDATE dbos.workflow_status SET recovery_attempts = 1000 WHERE workflow_uuid = %s", [task.id])
    hire("tests.agents:echo")
    assert task.result(timeout=30) == "turn 1: hello"
