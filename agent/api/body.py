"""What a request may bring: so many bytes, in so much time, as JSON."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.api import problem

LARGEST = 8 * 1024 * 1024
"""Bytes of a body: an input of 1 MiB fits, even if every character of it is escaped."""

LONGEST = 30.0
"""Seconds a body may take to arrive."""

CLOSE = {"Connection": "close"}


class Body:
    def __init__(self, app: ASGIApp, *, largest: int = LARGEST, longest: float = LONGEST) -> None:
        self.app = app
        self.largest = largest
        self.longest = longest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        said = headers.get("content-length")
        size = int(said) if said is not None and said.isdecimal() else None
        has_body = bool(size) or "transfer-encoding" in headers
        if size is not None and size > self.largest:
            await problem.answer(scope, 413, self._too_large(), headers=CLOSE)(scope, receive, send)
        elif has_body and scope["path"].startswith("/v1/") and not _is_json(headers.get("content-type", "")):
            detail = "the body must be JSON, and say so: Content-Type: application/json"
            await problem.answer(scope, 415, detail, headers={"Accept": "application/json", **CLOSE})(
                scope, receive, send
            )
        else:
            await self.app(scope, self._measured(receive), send)

    def _measured(self, receive: Receive) -> Receive:
        """Counts and times the body; what comes after it, as that the client left, may take any time."""
        taken, is_whole = 0, False
        deadline: float | None = None

        async def take() -> Message:
            nonlocal taken, is_whole, deadline
            if is_whole:
                return await receive()
            now = asyncio.get_running_loop().time()
            deadline = now + self.longest if deadline is None else deadline
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - now))
            except TimeoutError:
                detail = f"the body did not arrive within {self.longest:g} seconds"
                raise HTTPException(408, detail, CLOSE) from None
            taken += len(message.get("body", b""))
            if taken > self.largest:
                raise HTTPException(413, self._too_large(), CLOSE)
            is_whole = message["type"] != "http.request" or not message.get("more_body", False)
            return message

        return take

    def _too_large(self) -> str:
        return f"a body may have {self.largest} bytes"


def _is_json(content_type: str) -> bool:
    kind = content_type.split(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
