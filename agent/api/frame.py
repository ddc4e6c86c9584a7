"""What is around every answer: a request id, headers that keep browsers from doing harm, and a last resort."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.api import problem
from agent.log import log

SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self';"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""On every answer that does not say otherwise itself."""


class Frame:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).get("x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id
        has_started = False

        async def send_framed(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, receive, send_framed)
        except Exception:
            log.exception("request %s failed: %s %s", request_id, scope["method"], ascii(scope["path"]))
            if has_started:
                raise
            response = problem.answer(
                scope, 500, "this should not have happened; the service's log has more under this request id"
            )
            await response(scope, receive, send_framed)


def _request_id(given: str | None) -> str:
    """The caller's own, if it can do no harm in a header or a log."""
    return given if given and SANE.fullmatch(given) else uuid.uuid4().hex
