"""A worker that is alive but stuck does not look healthy: the stuck step is found, and everything else goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from agent.client import AgentClient
from store.errors import TaskFailed
from tests.workers import Place, Worker, eventually

Hire = Callable[..., Worker]
STALL = 1.5


def moment_of(client: AgentClient, session: str, kind: str, nth: int = 0) -> float:
    events = [event for event in client.session(session).events() if event.kind == kind]
    return events[nth].at.timestamp()


@pytest.mark.parametrize("deed", ["awaits", "sleeps", "lends", "clogs"])
def test_a_stuck_tool_is_found_tried_again_and_set_aside(
    client: AgentClient, place: Place, hire: Hire, deed: str
) -> None:
    hire("tests.agents:stuck", stall_seconds=STALL, drain_seconds=1)
    task = client.enqueue("stuck", f"{deed} for ever", session="s-1")
    following = client.enqueue("stuck", "still there?", session="s-1")
    with pytest.raises(TaskFailed, match=f"hang: tool.{deed} made no progress for 1.5 s, 2 times"):
        task.result(timeout=60)
    assert following.result(timeout=30) == "answered: still there?"

    assert [line["what"] for line in place.world("ran")] == [deed, deed], "tried once more, not more often"
    assert moment_of(client, "s-1", "task.stalled") - moment_of(client, "s-1", "tool.started") < 2 * STALL
    [letter] = client.dead_letters()
    assert letter.evidence["reason"] == "hang"
    assert {notice.kind for notice in client.session("s-1").notices()} == {"hang", "dead"} or deed == "clogs"
    started = time.monotonic()
    assert client.enqueue("stuck", "quick", session="s-2").result(timeout=30) == "answered: quick"
    assert time.monotonic() - started < 5, "others are served as before"
    log = (place.folder / "worker.log").read_text()
    assert ("blocks a thread for good; this worker is replaced" in log) == (deed in ("sleeps", "lends"))
    if deed == "clogs":
        assert "tool.clogs of task" in log and "has blocked the event loop" in log
        assert "in clogs\n    time.sleep(3600)" in log, "with the stack that blocks"
        assert any("blocked the event loop" in alert.what for alert in client.alerts(resolved=True))


def test_tasks_beside_a_stuck_one_lose_nothing(client: AgentClient, place: Place, hire: Hire) -> None:
    agents = ("tests.agents:stuck", "tests.agents:poison")
    hire(*agents, stall_seconds=STALL, drain_seconds=5)
    working = [client.enqueue("poison", f"work {number}", session=f"w-{number}") for number in range(10)]
    client.enqueue("stuck", "sleeps for ever", session="s-1")
    for task in working:
        assert str(task.result(timeout=60)).endswith(": done")
    eventually(lambda: client.dead_letters())
    effects = [line["key"] for line in place.world("world")]
    assert len(effects) == len(set(effects)) == 30


def test_a_slow_tool_that_beats_is_left_alone(client: AgentClient, hire: Hire) -> None:
    hire("tests.agents:stuck", stall_seconds=1)
    assert client.enqueue("stuck", "beats slowly").result(timeout=30) == "beats: finished"


def test_a_notebook_that_waits_for_postgres_is_not_taken_for_hung(
    client: AgentClient, url: str, db: psycopg.Connection, place: Place, hire: Hire
) -> None:
    (place.folder / "open").write_text("")
    hire("tests.agents:planner", stall_seconds=0.5)
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND query LIKE '%checkpoint%' AND clock_timestamp() - query_start > interval '2 s'"
    )
    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE agent.checkpoints IN EXCLUSIVE MODE")
        task = client.enqueue("planner", "plan the harbour", session="s-1")
        eventually(lambda: db.execute(waits.encode()).fetchone() != (0,))
    assert task.result(timeout=30) == "the harbour stands"
    assert "task.stalled" not in [event.kind for event in client.session("s-1").events()]
