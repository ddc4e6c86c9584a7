"""A session followed as it goes: its journal, and the pieces of answers in the making, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from agent.api.caller import Asking, Store, find_session
from agent.api.words import SessionIn
from agent.feed import follow
from store.bell import Bell
from store.stream import Place, read_place

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["events"])

RECONNECT_MILLISECONDS = 500
PLACE = r"^[0-9]{1,18}(\.[0-9a-f]{1,32}\.[0-9]{1,9})?$"

EXAMPLE = """id: 12
event: task.started
data: {"session_id": "acme-17", "seq": 12, "task_id": "6d…", "kind": "task.started", "data": {}, "at": "…"}

id: 12.9f3c55d0a1b2c3d4.1
event: token
data: {"session_id": "acme-17", "task_id": "6d…", "kind": "token", "data": {"part": 0, "kind": "text", "delta": "Hel"}}
"""


def bell_of(request: Request) -> Bell:
    return cast(Bell, request.app.state.bell)


Ringing = Annotated[Bell, Depends(bell_of)]


async def start_of(
    session_id: SessionIn,
    caller: Asking,
    store: Store,
    last_event_id: Annotated[
        str | None, Header(pattern=PLACE, description="The id of the last event you have; what follows it is sent.")
    ] = None,
    after: Annotated[str | None, Query(pattern=PLACE, description="The same, for a first request.")] = None,
) -> Place:
    """Where to begin: at the beginning, unless a place is given."""
    await find_session(store, caller, session_id)
    return read_place(last_event_id or after or "0")


@router.get(
    "/events",
    response_class=EventSourceResponse,
    responses={200: {"content": {"text/event-stream": {"example": EXAMPLE}}}},
)
async def follow_session(
    session_id: SessionIn,
    store: Store,
    bell: Ringing,
    start: Annotated[Place, Depends(start_of)],
    seconds: Annotated[
        float | None, Query(ge=0, le=86_400, description="End after so long; 0 tells what there is, and ends.")
    ] = None,
) -> AsyncIterable[ServerSentEvent]:
    """Follow a session. Events of the journal carry their number as id. Between them, `token` events are pieces of an
    answer in the making; the `model.responded` event that follows them holds all of it and takes their place. A `reset`
    takes back the pieces sent since the last such event: the answer is given anew. Reconnect with `Last-Event-ID`, to
    this process or any other: nothing is missing and nothing comes twice."""
    yield ServerSentEvent(retry=RECONNECT_MILLISECONDS, comment="following")
    async for happening in follow(store, bell, session_id, start, seconds=seconds):
        told: dict[str, Any] = {
            "session_id": session_id,
            "task_id": happening.task_id,
            "kind": happening.kind,
            "data": happening.data,
        }
        if happening.at is not None:
            told |= {"seq": happening.place.seq, "at": happening.at}
        yield ServerSentEvent(id=str(happening.place), event=happening.kind, data=told)
