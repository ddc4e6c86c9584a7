"""Effects in doubt, approvals, and what a person can decide. The other policies are in the kill sweep."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from agent.client import AgentClient
from store.errors import Conflict, NotFound
from tests.workers import Place, Worker, eventually

Hire = Callable[..., Worker]


@pytest.fixture
def interrupted(client: AgentClient, place: Place, hire: Hire) -> str:
    """A task whose worker died inside an effect with the policy `ask`, and that now waits for a person."""
    (place.folder / "die").write_text("")
    doomed = hire("tests.agents:asks")
    task = client.enqueue("asks", "wire 100", session="s-1")
    assert doomed.process.wait(30) == -9
    hire("tests.agents:asks")
    assert task.settled_status(timeout=30) == "waiting"
    return task.id


def test_an_effect_in_doubt_under_ask_waits_for_a_person_and_the_session_stays_reachable(
    client: AgentClient, db: psycopg.Connection, interrupted: str
) -> None:
    assert client.session("s-1").state == "waiting"
    assert [(row.tool, row.policy, row.task_id) for row in client.doubts()] == [("wire", "ask", interrupted)]
    [question] = client.task(interrupted).questions()
    assert "may or may not have happened" in (question.reason or "")
    [asked] = [event for event in client.session("s-1").events() if event.kind == "approval.requested"]
    assert set(asked.data) >= {"task_id", "call_id", "tool", "arguments", "reason", "expires_at"}

    other = client.enqueue("asks", "hello", session="s-1")
    assert other.result(timeout=30) == "hello to you too, message 2"
    assert client.task(interrupted).status() == "waiting"


def test_approved_it_runs_once_under_the_same_key(client: AgentClient, place: Place, interrupted: str) -> None:
    [question] = client.task(interrupted).questions()
    following = client.approve(interrupted, question.call_id)
    assert following is not None
    assert following.result(timeout=30) == "wire: wired"
    assert client.task(interrupted).result(timeout=1) == "wire: wired"
    assert len(place.world("world")) == 1
    assert len({line["key"] for line in place.world("ran")}) == 1
    assert client.doubts() == []
    assert client.session("s-1").state == "idle"
    again = client.approve(interrupted, question.call_id)
    assert again is not None
    assert again.id == following.id


def test_denied_it_does_not_run_and_the_model_is_told_why(client: AgentClient, place: Place, interrupted: str) -> None:
    [question] = client.task(interrupted).questions()
    following = client.deny(interrupted, question.call_id, reason="the bank says it went through")
    assert following is not None
    assert following.result(timeout=30) == "wire: the bank says it went through"
    assert place.world("world") == []
    assert client.doubts() == []
    with pytest.raises(Conflict, match="already denied"):
        client.approve(interrupted, question.call_id)


def test_a_question_nobody_asked_is_refused(client: AgentClient) -> None:
    with pytest.raises(NotFound, match="asks nothing"):
        client.approve("no-such-task", "no-such-call")


def test_a_tool_that_requires_approval_waits_and_then_runs_once(client: AgentClient, place: Place, hire: Hire) -> None:
    first = hire("tests.agents:asks")
    task = client.enqueue("asks", "erase the disk", session="s-1")
    assert task.settled_status(timeout=30) == "waiting"
    assert place.world("ran") == []
    between = client.enqueue("asks", "hello", session="s-1")
    assert between.result(timeout=30).startswith("hello")
    first.kill()
    [question] = client.session("s-1").questions()
    client.approve(task.id, question.call_id)
    hire("tests.agents:asks")

    assert task.result(timeout=30) == "erase: erased"

    assert len(place.world("world")) == 1
    after = client.enqueue("asks", "hello again", session="s-1")
    assert after.result(timeout=30) == "hello to you too, message 3"


def test_an_unmarked_tool_in_doubt_is_reported_and_listed(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Hire
) -> None:
    doomed = hire("tests.agents:halts")
    task = client.enqueue("halts", "go")
    eventually(lambda: place.world("ran"))
    assert client.doubts() == [], "an effect that runs is not in doubt"
    doomed.kill()
    hire("tests.agents:halts")
    answer = task.result(timeout=30)
    assert "outcome of this call to halt is unknown" in answer
    assert len(place.world("ran")) == 1
    [doubt] = client.doubts()
    assert (doubt.tool, doubt.policy) == ("halt", "report")
    assert db.execute("SELECT tool FROM agent.in_doubt").fetchall() == [("halt",)]


def test_starting_an_effect_again_after_a_lost_answer_is_no_doubt(client: AgentClient, db: psycopg.Connection) -> None:
    db.execute("INSERT INTO agent.agents (name) VALUES ('asks')")
    task = client.enqueue("asks", "hello")
    db.execute("UPDATE dbos.workflow_status SET status = 'PENDING', owner_xid = 'mine'")

    def start(owner: str) -> str:
        row = db.execute(
            "SELECT agent.start_effect(%s, %s, 'worker', 'key', 'call', 'tool', '{}', 'report')", [task.id, owner]
        ).fetchone()
        assert row is not None
        return row[0]

    assert [start("mine"), start("mine")] == ["fresh", "fresh"]
    db.execute("UPDATE dbos.workflow_status SET owner_xid = 'theirs'")
    with pytest.raises(psycopg.Error, match="no longer owned"):
        start("mine")
    assert start("theirs") == "in doubt"
