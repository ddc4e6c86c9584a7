"""What this process counts for Prometheus: what it did itself, from its start on. The database's own state is read
when somebody asks for it; see agent/scrape.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from store.types import Spent

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SLOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
PATIENT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)

LAG_SECONDS = 0.5
"""How often the event loop is asked how late it is."""

registry = CollectorRegistry()
ProcessCollector(registry=registry)

steps = Counter("perdure_steps", "Steps that ran here, by kind and outcome.", ["kind", "outcome"], registry=registry)
step_seconds = Histogram(
    "perdure_step_duration_seconds", "How long steps took, by kind.", ["kind"], buckets=SLOW, registry=registry
)
queue_seconds = Histogram(
    "perdure_task_queue_duration_seconds",
    "From a task's acceptance to its start here, the session's earlier tasks included.",
    buckets=PATIENT,
    registry=registry,
)
tasks_ended = Counter(
    "perdure_tasks_ended", "Tasks that ended here, by agent and status.", ["agent", "status"], registry=registry
)
recoveries = Counter("perdure_recoveries", "Tasks found with dead workers and taken up again.", registry=registry)
compactions = Counter(
    "perdure_compactions", "Requests that left something out, by how.", ["strategy"], registry=registry
)
tokens = Counter(
    "perdure_model_tokens", "Tokens by the models' own account; cached ones are part of the input.",
    ["agent", "model", "type"], registry=registry,
)  # fmt: skip
cached_tokens = Counter(
    "perdure_model_cached_tokens", "Input tokens read from or written to the provider's cache.",
    ["agent", "model", "type"], registry=registry,
)  # fmt: skip
cost = Counter(
    "perdure_model_cost_usd", "US dollars, at the prices of the moment; models without a known price add nothing.",
    ["agent", "model"], registry=registry,
)  # fmt: skip
loop_lag = Histogram("perdure_event_loop_lag_seconds", "How late the event loop was.", buckets=FAST, registry=registry)
http_requests = Counter(
    "perdure_http_requests", "HTTP requests, by route and status.", ["method", "route", "status"], registry=registry
)
http_seconds = Histogram(
    "perdure_http_request_duration_seconds", "How long HTTP answers took, without event streams.",
    ["method", "route"], buckets=FAST, registry=registry,
)  # fmt: skip
streams = Gauge("perdure_event_streams_open", "Event streams that are being followed here.", registry=registry)


class Outcome:
    """How a step ends, unless it raises."""

    def __init__(self, said: str) -> None:
        self.said = said


@contextmanager
def step(kind: str, outcome: str, stops: tuple[type[BaseException], ...] = ()) -> Iterator[Outcome]:
    """Count a step that really runs: one that is read from its record is none. What `stops` it is no error."""
    ending, began = Outcome(outcome), time.perf_counter()
    try:
        yield ending
    except BaseException as error:
        ending.said = "stopped" if isinstance(error, (asyncio.CancelledError, *stops)) else "error"
        raise
    finally:
        steps.labels(kind, ending.said).inc()
        step_seconds.labels(kind).observe(time.perf_counter() - began)


def pay(agent: str, items: Sequence[Spent]) -> None:
    for item in items:
        model = item.model or "unknown"
        tokens.labels(agent, model, "input").inc(item.input_tokens)
        tokens.labels(agent, model, "output").inc(item.output_tokens)
        cached_tokens.labels(agent, model, "read").inc(item.cache_read_tokens)
        cached_tokens.labels(agent, model, "write").inc(item.cache_write_tokens)
        if item.cost_usd is not None:
            cost.labels(agent, model).inc(float(item.cost_usd))


async def watch_loop() -> None:
    """Ask the event loop again and again how late it is."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + LAG_SECONDS
        await asyncio.sleep(LAG_SECONDS)
        loop_lag.observe(max(0.0, clock() - due))
