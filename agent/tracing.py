"""Traces by OpenTelemetry, when an endpoint says where to: nothing of it is loaded otherwise.

DBOS makes the spans of tasks and steps, Pydantic AI those of runs, requests and tool calls; here they get a place to go
and lose what somebody said, unless that is asked for.
"""

from __future__ import annotations

import hashlib
import os
import sys
import uuid
from typing import Any

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
DELAY = "OTEL_BSP_SCHEDULE_DELAY"
DELAY_MILLISECONDS = 1000.0
"""How long a finished span waits for company; kill -9 loses no more than that."""
FAREWELL_MILLISECONDS = 3000
SAID = ("exception.message", "exception.stacktrace")
"""What an exception tells of what it was given."""

_provider: Any = None


def is_wanted() -> bool:
    return any(os.environ.get(name) for name in ENDPOINTS) and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"


def is_on() -> bool:
    return _provider is not None


def current() -> str | None:
    """The caller's own place in a trace, as W3C writes it; nothing without one, or without OpenTelemetry."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    span = trace.get_current_span().get_span_context() if trace is not None else None
    if span is None or not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags) & 1:02x}"


def made_for(task: str) -> str:
    """The trace of a task that nobody's trace led to: always the same, so that every worker adds to one."""
    digest = hashlib.sha256(task.encode()).hexdigest()
    try:
        trace = uuid.UUID(task).hex
    except ValueError:
        trace = digest[16:48]
    return f"00-{trace}-{digest[:16]}-01"


def start(*, version: str, worker: str, with_content: bool) -> None:
    """Export what this process does, and instrument the agents. A provider that the agents' code has set up is kept."""
    global _provider
    from opentelemetry import trace
    from pydantic_ai import Agent
    from pydantic_ai.models.instrumented import InstrumentationSettings

    _provider = trace.get_tracer_provider()
    if isinstance(_provider, trace.ProxyTracerProvider):
        _provider = _export(version, worker, with_content=with_content)
        trace.set_tracer_provider(_provider)
    Agent.instrument_all(
        InstrumentationSettings(
            include_content=with_content, include_binary_content=False, include_model_request_parameters=with_content
        )
    )


def _export(version: str, worker: str, *, with_content: bool) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    known: dict[str, str] = {"service.version": version, "service.instance.id": worker}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        known["service.name"] = "perdure"
    provider = TracerProvider(resource=Resource.create(known))
    if not with_content:
        provider.add_span_processor(_discreet())
    delay = None if os.environ.get(DELAY) else DELAY_MILLISECONDS
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=delay))
    return provider


def _discreet() -> Any:
    from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
    from opentelemetry.trace import Status

    class Discreet(SpanProcessor):
        """An error's words may be those of a user, a tool or a model: only that there was one is told."""

        def on_end(self, span: ReadableSpan) -> None:
            ended: Any = span
            if span.status.description:
                ended._status = Status(span.status.status_code)
            if span.events:
                ended._events = [
                    Event(
                        event.name,
                        {key: value for key, value in (event.attributes or {}).items() if key not in SAID},
                        event.timestamp,
                    )
                    for event in span.events
                ]

    return Discreet()


def describe(**facts: str | None) -> None:
    """Say on the current span whose it is."""
    if is_on():
        from opentelemetry import trace

        for name, value in facts.items():
            if value is not None:
                trace.get_current_span().set_attribute(f"perdure.{name}", value)


def stop() -> None:
    """Send what is left, for a moment."""
    if is_on() and hasattr(_provider, "force_flush"):
        _provider.force_flush(FAREWELL_MILLISECONDS)
