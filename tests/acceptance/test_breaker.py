"""What crashes too often waits, and nothing else does; it closes by itself."""

from __future__ import annotations

import psycopg
import pytest

from agent.client import AgentClient
from store.errors import TaskFailed
from tests.workers import Place, eventually, keep_alive

AGENTS = ["tests.agents:poison", "tests.agents:echo"]


def test_a_session_that_crashes_too_often_waits_and_heals_without_a_person(
    client: AgentClient, place: Place, db: psycopg.Connection
) -> None:
    with keep_alive(place, AGENTS, backoff_seconds="0,0,0,1.5"):
        for _ in range(2):
            with pytest.raises(TaskFailed, match="it killed its worker"):
                client.enqueue("poison", "leave now", session="sick").result(timeout=60)
        [breaker] = eventually(client.breakers)
        assert breaker.scope == "session:sick"
        assert client.session("sick").state == "quarantined"
        held = client.enqueue("poison", "leave again", session="sick")
        assert client.enqueue("poison", "hello", session="well").result(timeout=30) == "answered: hello"
        assert client.enqueue("echo", "hello", session="other").result(timeout=30) == "turn 1: hello"
        assert held.status() == "queued", "its tasks wait"
        assert [alert.times for alert in client.alerts() if alert.key == "breaker:session:sick"] == [1]

        with pytest.raises(TaskFailed, match="it killed its worker"):
            held.result(timeout=60)  # half-open: one task is tried, and the breaker opens again
        eventually(lambda: client.breakers()[0].openings == 2)
        (place.folder / "healed").write_text("")
        healthy = client.enqueue("poison", "are you well?", session="sick")
        assert healthy.result(timeout=60) == "answered: are you well?"
        assert client.breakers() == []
        assert client.session("sick").state == "idle"
        assert [alert.key for alert in client.alerts() if alert.key.startswith("breaker")] == []


def test_a_tool_that_takes_many_sessions_down_is_held_and_nothing_else(client: AgentClient, place: Place) -> None:
    with keep_alive(place, AGENTS, backoff_seconds="0,0,0,3", crash_limit=1, isolate_after=1):
        for number in range(2):
            with pytest.raises(TaskFailed, match="it killed its worker"):
                client.enqueue("poison", "leave now", session=f"s-{number}").result(timeout=60)
        scopes = {breaker.scope for breaker in eventually(client.breakers)}
        assert "tool:poison/leave" in scopes
        assert "agent:poison" not in scopes, "the narrowest scope waits"
        eventually(lambda: client.enqueue("poison", "work now", session="w").result(timeout=60) == "work now: done")
        (place.folder / "healed").write_text("")
        wants = client.enqueue("poison", "leave please", session="s-9")
        assert wants.result(timeout=60) == "leave please: done"
        assert "tool:poison/leave" not in {breaker.scope for breaker in client.breakers()}


def test_a_crash_makes_a_task_wait_as_configured_and_says_so(client: AgentClient, place: Place) -> None:
    with keep_alive(place, AGENTS, backoff_seconds="3,4"):
        task = client.enqueue("poison", "leave now", session="s-1")
        following = client.enqueue("poison", "and then?", session="s-1")
        row = eventually(lambda: (seen := task.read()).runs_after and seen)
        assert row.status == "queued"
        late = client.enqueue("poison", "later", session="s-1")
        assert following.read().runs_after == row.runs_after, "the session keeps its order"
        assert late.read().runs_after == row.runs_after
        [notice] = client.session("s-1").notices()
        assert f"goes on by itself at {row.runs_after:%H:%M:%S} UTC" in notice.body
        (place.folder / "healed").write_text("")
        assert task.result(timeout=30) == "leave now: done"
        resumed = [event.at for event in client.session("s-1").events() if event.kind == "task.resumed"]
        assert resumed[0] >= row.runs_after
        assert late.result(timeout=30) == "answered: later"
    order = [event.task_id for event in client.session("s-1").events() if event.kind == "task.finished"]
    assert order == [task.id, following.id, late.id]
