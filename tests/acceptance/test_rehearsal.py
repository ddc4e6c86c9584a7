"""Before a deploy: which tasks under way does the new release not fit, and what becomes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent.client import AgentClient, Task
from tests.rows import every_row
from tests.workers import ROOT, Place, Worker, eventually

Hire = Callable[..., Worker]
Rehearse = Callable[..., subprocess.CompletedProcess[str]]
CLERK = "tests.releases:clerk"
ON_RECORD = "step 1 is on record as clerk__model.request, and the code now asks for extra.step"


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Says which release the processes started from here on are of."""
    return lambda name: monkeypatch.setenv("TEST_RELEASE", name)


@pytest.fixture
def rehearse(place: Place, release: Callable[[str], None]) -> Rehearse:
    def run(of: str, *arguments: str, agents: str = CLERK) -> subprocess.CompletedProcess[str]:
        release(of)
        return subprocess.run(
            [sys.executable, "-m", "agent", "rehearse", *arguments],
            cwd=ROOT,
            env=place.environment([agents]),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def found(rehearsal: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The differences by task."""
    assert rehearsal.returncode == 1, rehearsal.stderr
    return {row["task_id"]: row["difference"] for row in json.loads(rehearsal.stdout)}


def assert_all_fit(rehearsal: subprocess.CompletedProcess[str], count: int) -> None:
    assert rehearsal.returncode == 0, rehearsal.stdout + rehearsal.stderr
    assert rehearsal.stdout == f"All {count} tasks under way fit this release.\n"
    assert rehearsal.stderr == ""


def outside(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.glob("*.jsonl")}


def under_way(client: AgentClient, words: str, session: str, steps: int) -> Task:
    task = client.enqueue("clerk", words, session=session)
    eventually(lambda: len(task.steps()) == steps)
    return task


def doing(place: Place, what: str) -> Counter[str]:
    return Counter(line["task"] for line in place.world("ran") if line["what"] == what)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_tasks_that_a_release_does_not_fit_are_named_before_it_and_handed_over_after_it(
    client: AgentClient,
    place: Place,
    hire: Hire,
    release: Callable[[str], None],
    rehearse: Rehearse,
    db: psycopg.Connection,
    how: str,
) -> None:
    worker = hire(CLERK, drain_seconds=0)
    working = [under_way(client, f"work {name}", name, steps=3) for name in ("a", "b")]
    abreast = under_way(client, "abreast c", "c", steps=3)
    eventually(lambda: len(doing(place, "deliver")) == 3)
    queued = [client.enqueue("clerk", f"then {number}", session="a") for number in range(2)]
    getattr(worker, how)()

    rows, world = sorted(every_row(db)), outside(place.folder)
    assert_all_fit(rehearse("first"), 3)
    differences = found(rehearse("inserts a step", "--json"))
    assert differences == {task.id: ON_RECORD for task in (*working, abreast)}
    told = rehearse("inserts a step").stdout
    assert all(task.id in told for task in working) and ON_RECORD in told
    assert "3 of 3 tasks under way do not fit this release" in told
    assert sorted(every_row(db)) == rows, "nothing was written"
    assert outside(place.folder) == world, "no tool and no model ran"

    release("inserts a step")
    hire(CLERK)
    for task in (*working, abreast):
        assert str(task.result(timeout=60)).endswith(": left as it is"), "its id gives the fresh one's answer"
        assert_handed_over(client, place, db, task)
    assert "Exception encountered" not in (place.folder / "worker.log").read_text()
    assert [task.result(timeout=60) for task in queued] == ["then 0: done, 0 results", "then 1: done, 0 results"]
    ends = [event.task_id for event in client.session("a").events() if event.kind == "task.finished"]
    fresh = working[0].continuation()
    assert fresh is not None
    assert ends == [fresh.id, *(task.id for task in queued)], "in order"
    assert_all_done(rehearse("inserts a step"))


def assert_all_done(rehearsal: subprocess.CompletedProcess[str]) -> None:
    assert rehearsal.returncode == 0
    assert rehearsal.stdout == "No task under way has anything on record: this release can be deployed.\n"


def assert_handed_over(client: AgentClient, place: Place, db: psycopg.Connection, task: Task) -> None:
    row, fresh = task.read(), task.continuation()
    assert (row.status, row.error) == ("cancelled", ON_RECORD)
    assert fresh is not None
    assert fresh.read().seq == row.seq
    session = client.session(row.session_id)
    written = "SELECT reason, document->'in_doubt'->0->>'tool' FROM agent.handoffs WHERE occasion = %s"
    assert db.execute(written, [f"handover:{task.id}"]).fetchall() == [("planned", "deliver")]
    assert "task.handed_over" in [event.kind for event in session.events()]
    [sent] = [line["messages"] for line in place.world("sent") if line["task"] == fresh.id]
    assert "In doubt" in sent and "deliver" in sent
    for what in ("book", "look"):
        assert fresh.id not in doing(place, what)
        assert doing(place, what)[task.id] in (0, 1, 2)
        if doing(place, what)[task.id]:
            assert f"{what}: returned" in sent, "the model knows what was done"
    kept = json.dumps([stored.message for stored in session.messages() if stored.task_id == task.id])
    assert ("booked" in kept) == bool(doing(place, "book")[task.id]), "its results are in the session's history"
    assert ("booked" in sent) == ("booked" in kept)
    assert "This call has no recorded result" in sent
    assert doing(place, "deliver")[task.id] == 1
    assert doing(place, "deliver")[fresh.id] == 0


def test_every_way_not_to_fit_is_named(
    client: AgentClient, place: Place, hire: Hire, release: Callable[[str], None], rehearse: Rehearse, db: Any
) -> None:
    worker = hire(CLERK)
    task = under_way(client, "work a", "a", steps=2 + 1)
    worker.kill()
    assert found(rehearse("drops a tool", "--json")) == {
        task.id: "step 2 is on record as tool.book, and the code now asks for clerk__model.request"
    }
    assert found(rehearse("fails", "--json")) == {
        task.id: "step 1 is on record as clerk__model.request,"
        " and the code now fails (ValueError: nothing works today) before it"
    }
    [missing] = found(rehearse("first", "--json", agents="tests.agents:echo")).values()
    assert missing == "no agent named 'clerk' is served here; add it to PERDURE_AGENTS"

    def rewrite(step: int, old: str, new: str) -> None:
        db.execute(
            "UPDATE dbos.operation_outputs SET output = replace(output, %s, %s)"
            " WHERE workflow_uuid = %s AND function_id = %s",
            [old, new, task.id, step],
        )

    [kept] = db.execute("SELECT output::jsonb->>'call_id' FROM dbos.operation_outputs WHERE function_id = 2").fetchone()
    rewrite(2, kept, "another-call")
    [wrong] = found(rehearse("first", "--json")).values()
    assert wrong == f"book call another-call is on record where the code now makes book call {kept}"
    rewrite(2, "another-call", kept)
    assert_all_fit(rehearse("first"), 1)

    rewrite(3, "pydantic_ai.messages:ModelResponse", "pydantic_ai.messages:OfAnOlderRelease")
    [unknown] = found(rehearse("first", "--json")).values()
    assert "a recorded value cannot be loaded any more" in unknown
    assert "OfAnOlderRelease" in unknown
    release("first")
    hire(CLERK)
    assert task.result(timeout=60) == "work a: left as it is"
    assert task.read().error == unknown, "and that is why it was handed over"


def test_a_rehearsal_does_not_disturb_the_workers_beside_it(
    client: AgentClient, place: Place, hire: Hire, rehearse: Rehearse
) -> None:
    hire(CLERK)
    tasks = [under_way(client, "work a", "a", steps=3), under_way(client, "abreast b", "b", steps=3)]
    assert_all_fit(rehearse("first"), 2)
    assert len(found(rehearse("inserts a step", "--json"))) == 2
    (place.folder / "open").write_text("")
    assert [task.result(timeout=60) for task in tasks] == ["work a: done, 2 results", "abreast b: done, 3 results"]
    assert len(client.workers()) == 1, "it is no worker"
    assert [task.read().crashes for task in tasks] == [0, 0]
    assert set(doing(place, "deliver").values()) == {1}


def test_what_a_person_approved_is_not_asked_again_after_a_hand_over(
    client: AgentClient, place: Place, hire: Hire, release: Callable[[str], None], rehearse: Rehearse
) -> None:
    worker = hire(CLERK)
    asking = client.enqueue("clerk", "erase it", session="a")
    assert asking.settled_status(timeout=60) == "waiting"
    [question] = asking.questions()
    approved = client.approve(asking.id, question.call_id)
    assert approved is not None
    eventually(lambda: doing(place, "deliver")[approved.id])
    worker.kill()
    assert_all_fit(rehearse("first"), 1)
    assert found(rehearse("inserts a step", "--json")) == {
        approved.id: "step 2 is on record as clerk__model.request, and the code now asks for extra.step"
    }
    release("inserts a step")
    hire(CLERK)
    assert asking.result(timeout=60) == "erase it: left as it is"
    assert sum(doing(place, "erase").values()) == 1
    assert client.questions() == []
    last = place.world("sent")[-1]["messages"]
    assert "erased" in last and "erase: returned" in last


def test_decisions_that_a_replaced_task_has_not_used_serve_one_call_each_of_the_fresh_one(
    client: AgentClient,
    place: Place,
    hire: Hire,
    release: Callable[[str], None],
    rehearse: Rehearse,
    db: psycopg.Connection,
) -> None:
    worker = hire(CLERK)
    asking = client.enqueue("clerk", "sign the papers", session="a")
    assert asking.settled_status(timeout=60) == "waiting"
    calls = {str(row.arguments.get("what", "pen")): row for row in asking.questions()}
    client.approve(asking.id, calls["a"].call_id)
    client.approve(asking.id, calls["b"].call_id)
    client.approve(asking.id, calls["c"].call_id, arguments={"what": "c, but shorter"})
    client.deny(asking.id, calls["d"].call_id, reason="d is a trap")
    decided = client.answer(asking.id, calls["pen"].call_id, "the blue one")
    assert decided is not None
    eventually(lambda: doing(place, "sign b"))
    worker.kill()

    assert list(found(rehearse("begins with a step", "--json"))) == [decided.id]
    release("begins with a step")
    second = hire(CLERK)
    fresh = eventually(decided.continuation)
    eventually(lambda: doing(place, "deliver")[fresh.id])
    assert client.questions() == [], "nobody is asked again"
    first = place.world("sent")[-2]["messages"]
    assert "approved, and it has not run" in first and "d is a trap" in first and "the blue one" in first
    assert_all_fit(rehearse("begins with a step"), 1)
    second.kill()
    hire(CLERK)
    eventually(lambda: fresh.read().crashes == 1 and fresh.status() == "running")
    (place.folder / "open").write_text("")
    assert fresh.settled_status(timeout=60) == "waiting"
    again = fresh.questions()
    assert [row.arguments["what"] for row in again] == ["b", "c"], "one in doubt and one used: these are other calls"
    for row in again:
        client.deny(fresh.id, row.call_id, reason="once is enough")
    assert str(asking.result(timeout=60)).split(" | ") == [
        "signed c, but shorter", "d is a trap", "the blue one",
        str(fresh.steps()[-2].output), "once is enough", "once is enough",
    ]  # fmt: skip
    signed = [line for line in place.world("ran") if line["what"].startswith("sign")]
    assert [(line["task"], line["what"]) for line in signed] == [
        (decided.id, "sign a"), (decided.id, "sign b"), (fresh.id, "sign c, but shorter"),
    ]  # fmt: skip
    asked = "SELECT idempotency_key, honoured_by FROM agent.approvals WHERE call_id = %s"
    assert db.execute(asked, [calls["c"].call_id]).fetchall() == [(signed[-1]["key"], fresh.id)]
    kinds = [event.kind for event in client.session("a").events()]
    assert kinds.count("approval.honoured") == 3
