"""One session: its conversation, its timeline, what its model sees, and the state of its work."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, Response

from agent.api import files, sessions, tasks
from agent.api.caller import Asking, Store, find_session
from agent.api.words import LARGEST_PLACE, SessionIn, TaskIn
from agent.console.page import Page, is_partial, render
from agent.console.sight import look
from agent.console.talk import entries_of, read_talk
from agent.console.timeline import read_timeline
from agent.console.words import status_of
from agent.keyring import Caller
from store import continuity, overview, workers
from store import sessions as stored
from store.database import Database
from store.errors import NotFound

router = APIRouter(include_in_schema=False, route_class=Page, default_response_class=HTMLResponse)


@router.get("/sessions/{session_id}")
async def show_conversation(
    request: Request, session_id: SessionIn, caller: Asking, store: Store, whole: bool = False
) -> Response:
    facts = await _head(store, caller, session_id)
    return _show(request, caller, "conversation", facts, talk=await read_talk(store, session_id, whole=whole))


@router.get("/sessions/{session_id}/timeline")
async def show_timeline(request: Request, session_id: SessionIn, caller: Asking, store: Store) -> Response:
    facts = await _head(store, caller, session_id)
    lines = await read_timeline(store, session_id, facts["row"].journal_seq, datetime.now(UTC))
    return _show(request, caller, "timeline", facts, lines=lines)


@router.get("/sessions/{session_id}/context")
async def show_context(request: Request, session_id: SessionIn, caller: Asking, store: Store) -> Response:
    facts = await _head(store, caller, session_id)
    cards = {card.name: card for card in await store.try_once(workers.list_agents())}
    return _show(
        request,
        caller,
        "context",
        facts,
        sight=await look(store, facts["row"], cards.get(facts["row"].agent)),
        compactions=await store.try_once(continuity.list_compactions(session_id)),
    )


@router.get("/sessions/{session_id}/state")
async def show_state(request: Request, session_id: SessionIn, caller: Asking, store: Store) -> Response:
    facts = await _head(store, caller, session_id)
    restored = await store.try_once(continuity.read_restored(session_id, ""))
    return _show(
        request,
        caller,
        "state",
        facts,
        checkpoint=restored.checkpoint,
        corrections=restored.corrections,
        handoff=await store.try_once(continuity.newest_handoff(session_id)),
        files=(await files.list_files(session_id, caller, store, limit=500))["items"],
        effects=await store.try_once(stored.effects_after(session_id, 0)),
    )


@router.get("/console/tasks/{task_id}/steps/{step}")
async def show_step(
    request: Request, task_id: TaskIn, step: Annotated[int, Path(ge=0, le=10**9)], caller: Asking, store: Store
) -> Response:
    """The input and output of a step, once somebody opens it."""
    found = (await tasks.list_steps(task_id, caller, store, limit=1, cursor=tasks.STEPS.at(step - 1)))["items"]
    if not found or found[0].step != step:
        raise NotFound(f"task {task_id!r} has no step {step}")
    return render(request, "step.html", caller, step=found[0])


@router.get("/console/sessions/{session_id}/compacted")
async def show_originals(
    request: Request,
    session_id: SessionIn,
    caller: Asking,
    store: Store,
    after: Annotated[int, Query(ge=0, le=2**31 - 1)],
    through: Annotated[int, Query(ge=0, le=2**31 - 1)],
) -> Response:
    """What stands behind a summary: the messages themselves, which nobody deletes."""
    await find_session(store, caller, session_id)
    rows = await store.try_once(stored.read_messages(session_id, after=after, through=through))
    calls: dict[str, Any] = {}
    entries = [entry for row in rows if row.position <= through for entry in entries_of(row.message, calls)]
    return render(request, "originals.html", caller, entries=entries)


@router.get("/console/sessions/{session_id}/rewind")
async def ask_rewind(
    request: Request,
    session_id: SessionIn,
    caller: Asking,
    store: Store,
    to: Annotated[int, Query(ge=0, le=LARGEST_PLACE)],
) -> Response:
    """First what a rewind cannot undo, then the button."""
    effects = await sessions.list_effects(session_id, caller, store, after=to)
    return render(request, "rewind.html", caller, session_id=session_id, effects=effects, to=to)


async def _head(database: Database, caller: Caller, session: str) -> dict[str, Any]:
    await find_session(database, caller, session)
    now = datetime.now(UTC)
    rows = await database.try_once(overview.read_overview(now, user=caller.user, ids=[session], limit=1))
    if not rows:
        raise NotFound(f"there is no session {session!r}")
    return {"row": rows[0], "status": status_of(rows[0], now)}


def _show(request: Request, caller: Caller, tab: str, head: dict[str, Any], **facts: Any) -> Response:
    name = f"{tab}.html" if is_partial(request) else "session.html"
    return render(request, name, caller, tab=tab, **head, **facts)
