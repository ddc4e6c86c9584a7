"""Traces by OpenTelemetry, when somebody wants them: nothing of it is loaded otherwise."""

from __future__ import annotations

import os
import sys
from typing import Any

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def is_wanted() -> bool:
    return any(os.environ.get(name) for name in ENDPOINTS) and os.environ.get("OTEL_SDK_DISABLED", "") != "true"


def current() -> str | None:
    """The caller's own place in a trace, as W3C writes it; nothing without one, or while nobody loaded OpenTelemetry."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    span = trace.get_current_span().get_span_context() if trace is not None else None
    if span is None or not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags) & 1:02x}"
