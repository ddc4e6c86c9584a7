"""Events on the wire, with a word now and then while nothing happens, so that nobody on the way hangs up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from starlette.responses import StreamingResponse

PING_SECONDS = 15.0


def stream(events: AsyncIterator[str], headers: Mapping[str, str] | None = None) -> StreamingResponse:
    shown = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})}
    return StreamingResponse(with_pings(events), headers=shown, media_type="text/event-stream")


async def with_pings(events: AsyncIterator[str]) -> AsyncIterator[str]:
    following = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait({following}, timeout=PING_SECONDS)
            if not done:
                yield ": still here\n\n"
                continue
            event = following.result()
            if event is None:
                return
            yield event
            following = asyncio.ensure_future(anext(events, None))
    finally:
        following.cancel()
