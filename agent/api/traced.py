"""A span for every request that may change something, part of the caller's trace if there is one."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.api.door import SAFE


class Traced:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.tracer = trace.get_tracer("perdure")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE:
            await self.app(scope, receive, send)
            return
        caller = TraceContextTextMapPropagator().extract(dict(Headers(scope=scope)))
        with self.tracer.start_as_current_span(scope["method"], caller, kind=trace.SpanKind.SERVER) as span:
            span.set_attribute("http.request.method", scope["method"])

            async def send_traced(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        span.set_status(trace.StatusCode.ERROR)
                await send(message)

            try:
                await self.app(scope, receive, send_traced)
            finally:
                if route := getattr(scope.get("route"), "path", None):
                    span.set_attribute("http.route", route)
                    span.update_name(f"{scope['method']} {route}")
