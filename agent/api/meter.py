"""Counts requests by the route that answered, never by their path: names of sessions are no labels."""

from __future__ import annotations

import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent import metrics

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")


class Meter:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, is_stream = time.perf_counter(), 500, False

        async def send_metered(message: Message) -> None:
            nonlocal status, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                is_stream = Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream")
                if is_stream:
                    metrics.streams.inc()
            await send(message)

        try:
            await self.app(scope, receive, send_metered)
        finally:
            method = scope["method"] if scope["method"] in METHODS else "other"
            route = getattr(scope.get("route"), "path", "none")
            metrics.http_requests.labels(method, route, str(status)).inc()
            if is_stream:
                metrics.streams.dec()
            else:
                metrics.http_seconds.labels(method, route).observe(time.perf_counter() - began)
