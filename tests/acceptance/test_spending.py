"""What models use and cost is counted once, and budgets hold: nothing is lost, everybody is told once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal

import psycopg
import pytest

from agent.client import AgentClient
from tests.spenders import CACHED, INPUT, OUTPUT
from tests.workers import ROOT, Place, Worker, eventually

Hire = Callable[..., Worker]
SPENDER, STRANGER = "tests.spenders:spender", "tests.spenders:stranger"
ANSWER = INPUT + OUTPUT
COST = Decimal("0.003")
"""Of one answer, by the list, per million: 600 fresh tokens at 2.50, 400 cached at 1.25, 100 out at 10 dollars."""


def held(client: AgentClient, session: str) -> bool:
    return client.session(session).read().is_over_budget


def test_tokens_and_money_are_counted_once_per_task_session_user_agent_and_model(
    client: AgentClient, place: Place, hire: Hire, db: psycopg.Connection
) -> None:
    hire(SPENDER, STRANGER)
    task = client.enqueue("spender", "work 2", session="s-1", user="ana")
    other = client.enqueue("spender", "hello", session="s-2", user="ana")
    strange = client.enqueue("stranger", "hello", session="s-3", user="bob")
    for each in (task, other, strange):
        each.result(timeout=60)
    row = task.read()
    assert (row.tokens, row.cost_usd) == (3 * ANSWER, 3 * COST)
    assert client.session("s-1").read().cost_usd == 3 * COST
    unknown = strange.read()
    assert (unknown.tokens, unknown.cost_usd) == (ANSWER, None), "an unknown model has tokens and no price"
    by = {
        name: {r.name: r for r in client.usage(name)} for name in ("task", "session", "user", "agent", "model", "day")
    }
    assert by["user"]["ana"].cost_usd == 4 * COST and by["user"]["ana"].requests == 4
    assert by["agent"]["spender"].cache_read_tokens == 4 * CACHED
    assert (by["model"]["nobody-knows-1"].cost_usd, by["model"]["nobody-knows-1"].unpriced_requests) == (None, 1)
    assert by["session"]["s-2"].input_tokens == INPUT and by["task"][other.id].output_tokens == OUTPUT
    assert len(by["day"]) == 1
    responded = [e for e in client.session("s-1").events() if e.kind == "model.responded"]
    assert [e.data["cost_usd"] for e in responded] == [0.003] * 3
    done = subprocess.run(
        [sys.executable, "-m", "agent", "usage", "--by", "user", "--json"],
        env={**os.environ, **place.environment([SPENDER])}, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {line["name"]: line["cost_usd"] for line in json.loads(done.stdout)} == {"ana": 0.012, "bob": None}
    client.delete_session("s-1")
    assert {r.name: r.cost_usd for r in client.usage("user")}["ana"] == 4 * COST, "deleting makes nothing cheaper"
    assert db.execute("SELECT count(*) FROM agent.usage WHERE session_id = 's-1'").fetchone() == (0,)


def test_summaries_are_paid_by_the_task_that_needed_them(client: AgentClient, hire: Hire) -> None:
    hire(SPENDER, context_window=500, keep_messages=2)
    for number in range(12):
        client.enqueue("spender", f"number {number} " + "x" * 200, session="long").result(timeout=60)
    by = {row.name: row for row in client.usage("purpose")}
    assert by["answer"].requests == 12
    assert by["summary"].requests >= 1 and by["summary"].cost_usd == by["summary"].requests * COST
    assert client.session("long").read().cost_usd == (12 + by["summary"].requests) * COST


def test_a_briefing_is_on_the_account_of_the_interrupted_task(client: AgentClient, place: Place, hire: Hire) -> None:
    (place.folder / "shut").touch()
    first = hire(SPENDER, handoff_seconds=10)
    task = client.enqueue("spender", "work 1", session="s-1")
    eventually(lambda: any(line["what"] == "toil" for line in place.world("ran")))
    first.kill()
    hire(SPENDER, handoff_seconds=10)
    (place.folder / "shut").unlink()
    assert task.result(timeout=60) == "work 1: done"
    eventually(lambda: {row.name for row in client.usage("purpose")} == {"answer", "briefing"})
    assert {row.name: row.requests for row in client.usage("purpose")} == {"answer": 2, "briefing": 1}
    assert task.read().tokens == 3 * ANSWER


def test_a_session_stops_at_its_budget_while_another_goes_on_and_resumes_when_it_is_raised(
    client: AgentClient, hire: Hire, db: psycopg.Connection
) -> None:
    client.set_budget("session", "poor", tokens=2 * ANSWER)
    hire(SPENDER)
    stopped = client.enqueue("spender", "work 5", session="poor", user="ana")
    queued = client.enqueue("spender", "hello", session="poor", user="ana")
    free = client.enqueue("spender", "work 5", session="rich", user="ana")
    eventually(lambda: held(client, "poor"))
    assert free.result(timeout=60) == "work 5: done"
    later = client.enqueue("spender", "hello again", session="poor", user="ana")
    row = client.session("poor").read()
    assert (row.state, row.tokens, row.budget_until) == ("paused", 2 * ANSWER, None)
    assert {task.status() for task in (stopped, queued, later)} == {"queued"}
    [notice] = client.session("poor").notices()
    assert notice.kind == "budget" and "this session" in notice.body and "Nothing is lost" in notice.body
    [alert] = client.alerts()
    assert alert.key == "budget:session:poor" and alert.times == 1
    client.set_budget("session", "poor", tokens=100 * ANSWER)
    assert [task.result(timeout=60) for task in (stopped, queued, later)] == [
        "work 5: done", "hello: done", "hello again: done"
    ]  # fmt: skip
    assert [line.step for line in stopped.steps()] == list(range(1, 12)), "went on where it stood"
    assert len(client.session("poor").notices()) == 1 and client.alerts() == []
    assert client.session("poor").read().tokens == 8 * ANSWER


def test_a_budget_per_day_resumes_by_itself_on_the_next_day(
    client: AgentClient, hire: Hire, db: psycopg.Connection
) -> None:
    client.set_budget("session", "s-1", usd="0.004", per="day")
    hire(SPENDER)
    task = client.enqueue("spender", "work 5", session="s-1")
    eventually(lambda: held(client, "s-1"))
    until = client.session("s-1").read().budget_until
    assert until is not None and (until.hour, until.minute) == (0, 0)
    waits = db.execute("SELECT delay_until_epoch_ms FROM dbos.workflow_status WHERE workflow_uuid = %s", [task.id])
    assert waits.fetchone() == (int(until.timestamp() * 1000),), "DBOS itself wakes it at midnight"
    with db.transaction():  # a day passes
        db.execute("UPDATE agent.tallies SET day = day - 1")
        db.execute("UPDATE agent.sessions SET budget_until = budget_until - interval '1 day'")
        db.execute("UPDATE dbos.workflow_status SET delay_until_epoch_ms = delay_until_epoch_ms - 86400000")
    eventually(lambda: client.session("s-1").read().tokens > 2 * ANSWER)
    eventually(lambda: held(client, "s-1"))
    assert len(client.session("s-1").notices()) == 2, "one a day"
    client.remove_budget("session", "s-1")
    assert task.result(timeout=60) == "work 5: done"


def test_a_used_up_budget_outlives_its_worker_and_nothing_is_lost(
    client: AgentClient, place: Place, hire: Hire
) -> None:
    (place.folder / "shut").touch()
    client.set_budget("session", "s-1", tokens=ANSWER)
    first = hire(SPENDER)
    task = client.enqueue("spender", "work 1", session="s-1")
    eventually(lambda: any(line["what"] == "toil" for line in place.world("ran")))
    first.kill()
    hire(SPENDER)
    (place.folder / "shut").unlink()
    eventually(lambda: held(client, "s-1"))
    assert [notice.kind for notice in client.session("s-1").notices()] == ["crash", "budget"]
    assert len([line for line in place.world("ran") if line["what"] == "model"]) == 1
    client.set_budget("session", "s-1", tokens=10 * ANSWER)
    assert task.result(timeout=60) == "work 1: done"
    assert client.session("s-1").read().tokens == 2 * ANSWER


def test_a_user_s_budget_holds_over_all_their_sessions_and_defaults_for_whoever_has_none(
    client: AgentClient, hire: Hire
) -> None:
    hire(SPENDER, user_budget=f"{3 * ANSWER} tokens")
    client.set_budget("user", "rich", tokens=1_000_000)
    mine = [client.enqueue("spender", "work 3", session=f"ana-{n}", user="ana") for n in range(3)]
    others = [client.enqueue("spender", "work 3", session=name, user=name) for name in ("rich", "bob")]
    assert others[0].result(timeout=60) == "work 3: done"
    eventually(lambda: all(held(client, name) for name in ("ana-0", "ana-1", "ana-2", "bob")))
    spent = sum(client.session(f"ana-{n}").read().tokens for n in range(3))
    assert 3 * ANSWER <= spent <= 5 * ANSWER, "at most one request under way per session goes beyond"
    assert all(len(client.session(f"ana-{n}").notices()) == 1 for n in range(3))
    assert sorted(alert.key for alert in client.alerts()) == ["budget:user:ana", "budget:user:bob"]
    client.pause("ana-0")
    client.set_budget("user", "ana", usd=10)
    assert mine[1].result(timeout=60) == mine[2].result(timeout=60) == "work 3: done"
    assert mine[0].status() == "queued", "a person paused it, and that still holds"
    client.resume("ana-0")
    assert mine[0].result(timeout=60) == "work 3: done"
    assert held(client, "bob")


@pytest.mark.parametrize("given", ["much", "5 euros", "1.5 tokens", "-1 usd"])
def test_a_wrong_budget_is_one_sentence(place: Place, given: str) -> None:
    environment = place.environment([SPENDER], session_budget=given)
    done = subprocess.run(
        [sys.executable, "-m", "agent", "worker"], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"PERDURE_SESSION_BUDGET is {given!r}; allowed is as in 5 usd, 2 usd/day" in done.stderr
