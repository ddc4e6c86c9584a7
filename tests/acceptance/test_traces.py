"""One trace from the request to the last step, whoever dies on the way, and nobody's words in it unless asked for."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from agent.client import AgentClient
from tests.workers import ROOT, Place, Worker, eventually

Hire = Callable[..., Worker]
AGENT = "tests.spenders:spender"
SECRET = "the launch code is 4711"


class Receiver:
    """A collector that speaks OTLP over HTTP, as the specification says it."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def take(self, body: bytes) -> None:
        self.raw.append(body)
        told = ExportTraceServiceRequest.FromString(body)
        for resource in told.resource_spans:
            worker = {each.key: each.value.string_value for each in resource.resource.attributes}["service.instance.id"]
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        {
                            "worker": worker,
                            "scope": scope.scope.name,
                            "name": span.name,
                            "trace": span.trace_id.hex(),
                            "span": span.span_id.hex(),
                            "parent": span.parent_span_id.hex(),
                            "attributes": {each.key: each.value.string_value for each in span.attributes},
                        }
                    )

    def of(self, trace_id: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["trace"] == trace_id]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    started = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", started.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    yield started
    started.close()


def test_both_workers_add_to_the_caller_s_trace_when_one_is_killed(
    client: AgentClient, place: Place, hire: Hire, receiver: Receiver
) -> None:
    (place.folder / "shut").touch()
    first = hire(AGENT)
    caller = SpanContext(0xABCDEF0123456789ABCDEF0123456789, 0x1234567890ABCDEF, True, TraceFlags(1))
    with trace.use_span(NonRecordingSpan(caller)):
        task = client.enqueue("spender", "work 2", session="s-1", user="ana")
    trace_id = f"{caller.trace_id:032x}"
    eventually(lambda: any(line["what"] == "toil" for line in place.world("ran")))
    eventually(lambda: any("model.request" in span["name"] for span in receiver.of(trace_id)))
    first.kill()
    before = {span["worker"] for span in receiver.of(trace_id)}
    hire(AGENT)
    (place.folder / "shut").unlink()
    assert task.result(timeout=60) == "work 2: done"
    eventually(lambda: any(span["name"] == "run_task" for span in receiver.of(trace_id)))
    seen = receiver.of(trace_id)
    assert len({span["worker"] for span in seen}) == 2 and len(before) == 1, "both workers, one trace"
    [whole] = [span for span in seen if span["name"] == "run_task"]
    assert whole["parent"] == f"{caller.span_id:016x}"
    assert whole["attributes"]["dbos.operation.workflow_id"] == task.id
    assert whole["attributes"]["perdure.session"] == "s-1"
    assert {span["scope"] for span in seen} == {"dbos-tracer", "pydantic-ai"}
    assert {"tool.toil"} <= {span["name"] for span in seen}
    known = {span["span"] for span in seen} | {f"{caller.span_id:016x}"}
    second = [span for span in seen if span["worker"] == whole["worker"]]
    assert all(span["parent"] in known for span in second), "nothing hangs in the air"


def test_a_task_without_a_caller_has_one_trace_that_its_id_names(
    client: AgentClient, place: Place, hire: Hire, receiver: Receiver
) -> None:
    (place.folder / "shut").touch()
    first = hire(AGENT)
    task = client.enqueue("spender", "work 1", session="s-1")
    trace_id = task.id.replace("-", "")
    eventually(lambda: any("model.request" in span["name"] for span in receiver.of(trace_id)))
    eventually(lambda: any(line["what"] == "toil" for line in place.world("ran")))
    first.kill()
    hire(AGENT)
    (place.folder / "shut").unlink()
    task.result(timeout=60)
    eventually(lambda: any(span["name"] == "run_task" for span in receiver.of(trace_id)))
    assert len({span["worker"] for span in receiver.of(trace_id)}) == 2


@pytest.mark.parametrize("content", ["off", "on"])
def test_words_are_in_spans_only_when_that_is_asked_for(
    client: AgentClient, hire: Hire, receiver: Receiver, content: str
) -> None:
    hire(AGENT, "tests.agents:companion", trace_content=content)
    task = client.enqueue("spender", SECRET, session="s-1")
    task.result(timeout=60)
    trace_id = task.id.replace("-", "")
    eventually(lambda: any(span["name"] == "run_task" for span in receiver.of(trace_id)))
    told = any(SECRET.encode() in body for body in receiver.raw)
    assert told == (content == "on")


def test_an_error_s_words_stay_home(client: AgentClient, hire: Hire, receiver: Receiver) -> None:
    hire("tests.spenders:failing")
    task = client.enqueue("failing", SECRET, session="s-1")
    eventually(lambda: task.status() == "failed")
    assert SECRET in (task.read().error or "")
    trace_id = task.id.replace("-", "")
    eventually(lambda: any(span["name"] == "run_task" for span in receiver.of(trace_id)))
    assert not any(SECRET.encode() in body for body in receiver.raw)


def test_without_an_endpoint_nothing_of_it_is_loaded(
    client: AgentClient, hire: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads_protobuf(worker: Worker) -> bool:
        """Only the exporter needs it, and it is a library of the system's kind, which one can see from outside."""
        return "google/_upb" in Path(f"/proc/{worker.pid}/maps").read_text()

    worker = hire(AGENT)
    client.enqueue("spender", "hello", session="s-1").result(timeout=60)
    assert not loads_protobuf(worker)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert loads_protobuf(hire(AGENT))


def test_a_trace_begins_with_the_http_request(place: Place, receiver: Receiver) -> None:
    command, environment = [sys.executable, "-m", "agent", "start"], place.environment([AGENT])
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        caller = f"00-{'ab' * 16}-{'cd' * 8}-01"
        body = {"agent": "spender", "input": "hello"}
        sent = httpx.post(f"{address}/v1/sessions/s-1/messages", json=body, headers={"traceparent": caller})
        assert sent.status_code == 202
        eventually(lambda: any(span["name"] == "run_task" for span in receiver.of("ab" * 16)))
        eventually(lambda: any(span["scope"] == "fastapi" for span in receiver.of("ab" * 16)))
        [request] = [span for span in receiver.of("ab" * 16) if span["scope"] == "fastapi"]
        [task] = [span for span in receiver.of("ab" * 16) if span["name"] == "run_task"]
        assert request["name"] == "POST /v1/sessions/{session_id}/messages"
        assert (request["parent"], task["parent"]) == ("cd" * 8, request["span"])
    finally:
        process.terminate()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
