"""What Prometheus is told is what happened: tasks, steps, a crash, a dead letter, tokens and money, requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import psycopg
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from agent.client import AgentClient
from tests.serving import serving
from tests.spenders import CACHED, INPUT, OUTPUT
from tests.workers import Place, Worker, eventually

Hire = Callable[..., Worker]
AGENTS = ("tests.spenders:spender", "tests.agents:poison", "tests.agents:companion")


class Scraped:
    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in parse_text(text)}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))


def scrape(address: str) -> Scraped:
    return Scraped(httpx.get(f"http://{address}/metrics").raise_for_status().text)


def test_a_worker_tells_what_happened(client: AgentClient, place: Place, hire: Hire) -> None:
    first = hire(*AGENTS, isolate_after=1)
    doomed = client.enqueue("poison", "leave", session="p-1")
    first.process.wait(60)
    worker = hire(*AGENTS, isolate_after=1)
    eventually(lambda: doomed.status() == "dead")
    assert client.enqueue("spender", "work 2", session="s-1").result(timeout=60) == "work 2: done"
    asked = client.enqueue("companion", "risk it", session="c-1")
    eventually(lambda: asked.status() == "waiting")
    client.pause("s-1")
    client.enqueue("spender", "later", session="s-1")
    ended = {"agent": "companion", "status": "waiting"}
    eventually(lambda: scrape(worker.address)("perdure_tasks_ended_total", **ended))
    seen = scrape(worker.address)
    assert seen("perdure_postgres_up") == 1
    assert [seen("perdure_tasks", status=status) for status in ("queued", "running", "waiting")] == [1, 0, 1]
    assert seen("perdure_dead_letters") == 1 and seen("perdure_recoveries_total") == 2
    assert seen("perdure_workers", state="alive") == 1 and seen("perdure_workers", state="dead") == 2
    assert seen("perdure_breakers", state="open") == 0 and seen("perdure_alerts_open") == 1
    assert seen("perdure_effects_in_doubt") == len(client.doubts())
    assert seen("perdure_tasks_ended_total", agent="spender", status="done") == 1
    assert seen("perdure_steps_total", kind="model", outcome="responded") == 3 + 1
    assert seen("perdure_steps_total", kind="tool", outcome="returned") == 2
    assert seen("perdure_step_duration_seconds_count", kind="tool") == 2
    assert seen("perdure_task_queue_duration_seconds_count") == 2, "the dead one began elsewhere"
    labels = {"agent": "spender", "model": "gpt-4o"}
    assert seen("perdure_model_tokens_total", **labels, type="input") == 3 * INPUT
    assert seen("perdure_model_tokens_total", **labels, type="output") == 3 * OUTPUT
    assert seen("perdure_model_cached_tokens_total", **labels, type="read") == 3 * CACHED
    assert seen("perdure_model_cost_usd_total", **labels) == pytest.approx(0.009)
    assert (seen("perdure_event_loop_lag_seconds_count") or 0) > 0
    assert (seen("process_resident_memory_bytes") or 0) > 0
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    told = httpx.get(f"http://{worker.address}/metrics", headers=accept)
    assert told.headers["content-type"].startswith("application/openmetrics-text")
    assert {family.name for family in parse_openmetrics(told.text)} >= {"perdure_tasks", "perdure_steps"}


def test_a_scrape_is_one_statement_that_reads_no_history(url: str, client: AgentClient, db: psycopg.Connection) -> None:
    db.execute("INSERT INTO agent.agents (name) VALUES ('echo')")
    db.execute("SELECT agent.enqueue('echo', 'x', session_id => 's-1')")
    db.execute(
        "INSERT INTO agent.tasks (task_id, session_id, agent, input, seq, outcome)"
        " SELECT 't' || n, 's-1', 'echo', 'x', n + 1, 'done' FROM generate_series(1, 50000) n"
    )
    db.execute(
        "INSERT INTO dbos.workflow_status (workflow_uuid, status, name, queue_name, created_at, updated_at)"
        " SELECT 't' || n, 'SUCCESS', 'run_task', 'perdure', 1, 1 FROM generate_series(1, 50000) n"
    )
    db.execute("VACUUM ANALYZE agent.tasks")
    db.execute("VACUUM ANALYZE dbos.workflow_status")
    before = rows_read(db)
    db.execute("SELECT agent.gauges()")
    assert rows_read(db) - before < 1000, "what is over is not looked at"


def rows_read(db: psycopg.Connection) -> int:
    db.execute("SELECT pg_stat_force_next_flush()")
    row = db.execute(
        "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables"
        " WHERE (schemaname, relname) IN (('agent', 'tasks'), ('dbos', 'workflow_status'))"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_with_keys_metrics_need_one_that_sees_all_users(
    url: str, client: AgentClient, hire: Hire, tmp_path: Path
) -> None:
    worker = hire(*AGENTS)
    assert httpx.get(f"http://{worker.address}/metrics").status_code == 200
    assert httpx.get(f"http://{worker.address}/metrics", headers={"Host": "evil.test"}).status_code == 401
    scraping, own = client.make_key("prometheus", read_only=True), client.make_key("ana", user="ana")

    def status(address: str, key: str | None) -> int:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.get(f"http://{address}/metrics", headers=headers).status_code

    eventually(lambda: status(worker.address, None) == 401)
    assert (status(worker.address, scraping), status(worker.address, own)) == (200, 401)
    with serving(url) as served:
        address = served.address.removeprefix("http://")
        assert [status(address, key) for key in (None, scraping, own)] == [401, 200, 403]


def test_requests_and_open_streams_are_counted_by_route(url: str, client: AgentClient) -> None:
    with serving(url) as served, served.client() as http:

        def seen(name: str, **labels: str) -> float:
            return Scraped(http.get("/metrics").text)(name, **labels) or 0

        route = "/v1/sessions/{session_id}"
        counted = {"method": "GET", "route": route, "status": "404"}
        before = seen("perdure_http_requests_total", **counted)
        for name in ("a", "b", "c"):
            assert http.get(f"/v1/sessions/{name}").status_code == 404
        assert seen("perdure_http_requests_total", **counted) == before + 3
        http.post("/v1/sessions", json={"agent": "echo", "session_id": "s-1"})
        assert seen("perdure_event_streams_open") == 0
        with http.stream("GET", "/v1/sessions/s-1/events") as stream:
            lines = stream.iter_lines()
            next(lines)
            assert seen("perdure_event_streams_open") == 1
        eventually(lambda: seen("perdure_event_streams_open") == 0)
