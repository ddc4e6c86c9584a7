"""The first screen: sessions by who needs you."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, cast, get_args

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from agent.api import messages, sessions
from agent.api.caller import Asking, Store, identify
from agent.api.events import RECONNECT_MILLISECONDS, Ringing
from agent.console.page import Form, Page, go, is_partial, render
from agent.console.strip import CELLS, Cell, describe, strip_of
from agent.console.words import Status, status_of
from agent.keyring import Caller
from store import overview, workers
from store.database import Database
from store.overview import OverviewRow
from store.types import SessionState

router = APIRouter(include_in_schema=False, route_class=Page)
live = APIRouter(include_in_schema=False, dependencies=[Depends(identify)])

MOST = 100
LULL_SECONDS = 1.0
"""A page is told at most this often that something happened."""
LOOK_SECONDS = 15.0


@dataclass(frozen=True)
class Line:
    row: OverviewRow
    status: Status
    strip: list[Cell]
    strip_text: str

    @property
    def fill(self) -> float | None:
        """How full the context is, of 1."""
        if not self.row.context_window:
            return None
        return min(self.row.context_tokens / self.row.context_window, 1.0)


@router.get("/", response_class=HTMLResponse)
async def show_sessions(
    request: Request,
    caller: Asking,
    store: Store,
    text: Annotated[str, Query(max_length=1000)] = "",
    agent: Annotated[str, Query(max_length=200)] = "",
    show: Annotated[str, Query(max_length=20)] = "",
) -> Response:
    lines = await list_lines(store, caller, text, agent, show)
    counts = await store.try_once(overview.count(caller.user))
    agents = await store.try_once(workers.list_agents())
    return render(
        request,
        "sessions.html" if is_partial(request) else "overview.html",
        caller,
        lines=lines,
        counts=counts,
        agents=agents,
        cells=CELLS,
        wanted={"text": text, "agent": agent, "show": show},
        is_fresh=not lines and not (text or agent or show),
    )


async def list_lines(database: Database, caller: Caller, text: str, agent: str, show: str) -> list[Line]:
    now = datetime.now(UTC)
    ids: list[str] | None = None
    state = cast(SessionState, show) if show in get_args(SessionState) else None
    if text or agent or state:
        found = await sessions.list_sessions(
            caller, database, agent=agent or None, state=state, text=text or None, limit=MOST
        )
        ids = [row.session_id for row in found["items"]]
    rows = await database.try_once(overview.read_overview(now, user=caller.user, ids=ids, limit=MOST))
    lines = [Line(row, status_of(row, now), strip_of(row.strip), describe(row.strip)) for row in rows]
    lines.sort(key=lambda line: not line.status.needs_you)  # stable: a dead letter too comes before what runs
    return [line for line in lines if line.status.needs_you] if show == "you" else lines


@router.post("/console/sessions")
async def begin_session(request: Request, form: Form, caller: Asking, store: Store) -> Response:
    """The first message of a new session."""
    session = str(uuid.uuid4())
    body = messages.NewMessage.model_validate({name: form[name] for name in ("agent", "input") if name in form})
    await messages.send_message(session, body, caller, store)
    return go(request, f"/sessions/{session}")


@live.get("/console/live", response_class=EventSourceResponse)
async def ring(bell: Ringing) -> AsyncIterable[ServerSentEvent]:
    """Says that something happened, not what; a page then asks for what it shows."""
    yield ServerSentEvent(retry=RECONNECT_MILLISECONDS, comment="listening")
    with bell.ear() as ear:
        while bell.is_up:
            if await ear.heard(LOOK_SECONDS):
                yield ServerSentEvent(event="changed", data={})
            await asyncio.sleep(LULL_SECONDS)
