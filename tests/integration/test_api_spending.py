"""Usage and budgets over HTTP."""

from __future__ import annotations

import psycopg
import pytest

from agent.client import AgentClient
from tests.serving import serving

SPENT = (
    '[{"purpose": "answer", "model": "m-1", "input_tokens": 10, "output_tokens": 5, "cost_usd": "0.25"},'
    ' {"purpose": "summary", "model": "m-2", "input_tokens": 1, "output_tokens": 1}]'
)


@pytest.fixture
def spent(url: str, client: AgentClient, db: psycopg.Connection) -> None:
    db.execute("INSERT INTO agent.agents (name) VALUES ('echo')")
    for user in ("ana", "bob"):
        task = client.enqueue("echo", "hello", session=f"s-{user}", user=user)
        db.execute("SELECT agent.spend(%s, %s)", [task.id, SPENT])


def test_usage_is_summed_up_for_those_who_may_see_it(url: str, client: AgentClient, spent: None) -> None:
    own = client.make_key("ana", user="ana")
    with serving(url, keys=("all",)) as served, served.client("all") as http, served.client(own) as mine:
        assert {row["name"]: row["cost_usd"] for row in http.get("/v1/usage?by=user").json()} == {
            "ana": 0.25,
            "bob": 0.25,
        }
        [row] = mine.get("/v1/usage?by=user").json()
        assert (row["name"], row["requests"], row["unpriced_requests"], row["input_tokens"]) == ("ana", 2, 1, 11)
        assert mine.get("/v1/usage?by=session&session=s-bob").json() == []
        assert mine.get("/v1/usage?user=bob").status_code == 403
        session = mine.get("/v1/sessions/s-ana").json()
        assert (session["tokens"], session["cost_usd"]) == (17, 0.25)
        [task] = mine.get("/v1/sessions/s-ana/tasks").json()["items"]
        assert (task["tokens"], task["cost_usd"]) == (17, 0.25)


def test_budgets_are_set_by_those_who_see_all(url: str, client: AgentClient, spent: None) -> None:
    own, reading = client.make_key("ana", user="ana"), client.make_key("reader", read_only=True)
    budget = {"scope": "user", "name": "ana", "period": "day", "cost_usd": 0.2}
    with serving(url, keys=("all",)) as served, served.client("all") as http:
        for key in (own, reading):
            with served.client(key) as other:
                assert other.put("/v1/budgets", json=budget).status_code == 403
        assert http.put("/v1/budgets", json=budget).status_code == 204
        [row] = http.get("/v1/budgets").json()
        assert row == {**budget, "tokens": None, "spent_usd": 0.25, "spent_tokens": 17, "is_used_up": True}
        for wrong in ({"cost_usd": None}, {"cost_usd": -1}, {"scope": "agent"}, {"name": ""}, {"cost_usd": "NaN"}):
            assert http.put("/v1/budgets", json={**budget, **wrong}).status_code in (400, 422), wrong
        assert http.delete("/v1/budgets?scope=user&name=ana").status_code == 204
        assert http.delete("/v1/budgets?scope=user&name=ana").status_code == 404
        assert http.get("/v1/budgets").json() == []
