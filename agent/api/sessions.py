"""Sessions: made, listed, looked at, governed."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from agent.api.answers import Effect, Session
from agent.api.caller import Asking, Store, check_session, find_session, user_for
from agent.api.page import Cursor, Limit, Listing, Page
from agent.api.words import LARGEST_PLACE, TEXT, IdempotencyKey, Name, Note, Place, Request, SessionIn, Word
from store import sessions
from store.types import SessionRow, SessionState

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

KEYED = uuid.UUID("7d1a6b0e-52ab-4d7c-9a39-0d4f7c1f5a11")
"""The name space of session ids that are made from idempotency keys."""

BY_ACTIVITY = Listing("sessions by activity", tuple[datetime, str])
BY_BIRTH = Listing("sessions by birth", tuple[datetime, str])


class NewSession(Request):
    agent: Name
    session_id: Name | None = None
    user: Name | None = None
    title: Name | None = None


class Change(Request):
    title: Name


class Fork(Request):
    at: Place | None = None
    session_id: Name | None = None
    title: Name | None = None


class Rewind(Request):
    to: Place


class GiveBack(Request):
    note: Note | None = None


class TakeOver(Request):
    person: Name | None = None


@router.post(
    "", status_code=201, response_model=Session, responses={200: {"model": Session, "description": "It was there."}}
)
async def make_session(
    body: NewSession, caller: Asking, store: Store, response: Response, key: IdempotencyKey = None
) -> SessionRow:
    """Make a session without an input yet. The same `session_id`, or the same `Idempotency-Key`, gives the same one
    again, with status 200. Sending a message to an id that is not there makes a session too."""
    user = user_for(caller, body.user)
    session = body.session_id or str(uuid.uuid5(KEYED, f"{user or ''}\0{key}") if key else uuid.uuid4())
    is_new = await store.try_once(sessions.make(session, body.agent, user=user, title=body.title))
    response.status_code = 201 if is_new else 200
    return await find_session(store, caller, session)


@router.get("", response_model=Page[Session])
async def list_sessions(
    caller: Asking,
    store: Store,
    user: Word = None,
    agent: Word = None,
    state: SessionState | None = None,
    text: Annotated[
        str | None, Query(max_length=1000, pattern=TEXT, description="In titles, or in what was said.")
    ] = None,
    order: Annotated[
        Literal["activity", "birth"],
        Query(description="Last active first; or newest first, an order in which nothing moves while you page."),
    ] = "activity",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """List the sessions you may see."""
    listing = BY_ACTIVITY if order == "activity" else BY_BIRTH
    wanted = sessions.list_sessions(
        user=user_for(caller, user),
        agent=agent,
        state=state,
        words=text,
        by_birth=order == "birth",
        after=listing.after(cursor),
        limit=limit + 1,
    )
    rows = await store.try_once(wanted)

    def place(row: SessionRow) -> tuple[datetime, str]:
        return (row.last_active_at if order == "activity" else row.created_at), row.session_id

    return listing.page(rows, limit, place)


@router.get("/{session_id}", response_model=Session)
async def read_session(session_id: SessionIn, caller: Asking, store: Store) -> SessionRow:
    """Look at a session."""
    return await find_session(store, caller, session_id)


@router.patch("/{session_id}", response_model=Session)
async def rename_session(session_id: SessionIn, body: Change, caller: Asking, store: Store) -> SessionRow:
    """Give a session another title."""
    await check_session(store, caller, session_id)
    await store.try_once(sessions.name(session_id, body.title))
    return await find_session(store, caller, session_id)


@router.delete("/{session_id}", status_code=204)
async def delete_session(session_id: SessionIn, caller: Asking, store: Store) -> None:
    """Delete a session for good, with everything that belongs to it. Not while a task of it runs or forks need it."""
    await check_session(store, caller, session_id)
    await store.try_once(sessions.delete(session_id))


@router.get("/{session_id}/export")
async def export_session(session_id: SessionIn, caller: Asking, store: Store) -> dict[str, Any]:
    """Everything of a session as one document, its files and its shared past included; `perdure import` takes it in."""
    await check_session(store, caller, session_id)
    exported: dict[str, Any] = await store.play(sessions.export_whole(session_id))
    return exported


@router.post("/{session_id}/pause", response_model=Session)
async def pause_session(session_id: SessionIn, caller: Asking, store: Store) -> SessionRow:
    """Accept inputs and run none; a running task stops at its next step."""
    return await _set_mode(session_id, "paused", caller, store)


@router.post("/{session_id}/resume", response_model=Session)
async def resume_session(session_id: SessionIn, caller: Asking, store: Store) -> SessionRow:
    """Go on after a pause."""
    return await _set_mode(session_id, "open", caller, store)


@router.post("/{session_id}/close", response_model=Session)
async def close_session(session_id: SessionIn, caller: Asking, store: Store) -> SessionRow:
    """Accept nothing more, until it is reopened. Not while tasks are open."""
    return await _set_mode(session_id, "closed", caller, store)


@router.post("/{session_id}/reopen", response_model=Session)
async def reopen_session(session_id: SessionIn, caller: Asking, store: Store) -> SessionRow:
    """Accept inputs again."""
    return await _set_mode(session_id, "open", caller, store)


@router.post("/{session_id}/fork", status_code=201, response_model=Session)
async def fork_session(session_id: SessionIn, caller: Asking, store: Store, body: Fork | None = None) -> SessionRow:
    """Make a session with this one's past up to a place in the journal; without one, all of it."""
    await check_session(store, caller, session_id)
    given = body or Fork()
    heir = await store.try_once(sessions.fork(session_id, at=given.at, new=given.session_id, title=given.title))
    return await find_session(store, caller, heir)


@router.post("/{session_id}/rewind", response_model=Session)
async def rewind_session(session_id: SessionIn, body: Rewind, caller: Asking, store: Store) -> SessionRow:
    """Move a session back to a place in its journal. `GET …/effects?after=` lists first what this cannot undo."""
    await check_session(store, caller, session_id)
    await store.try_once(sessions.rewind(session_id, body.to))
    return await find_session(store, caller, session_id)


@router.get("/{session_id}/effects", response_model=list[Effect])
async def list_effects(
    session_id: SessionIn,
    caller: Asking,
    store: Store,
    after: Annotated[int, Query(ge=0, le=LARGEST_PLACE, description="A place in the journal.")] = 0,
) -> Any:
    """List what happened outside after a place in the journal, and no fork or rewind undoes."""
    await find_session(store, caller, session_id)
    return await store.try_once(sessions.effects_after(session_id, after))


@router.post("/{session_id}/take-over", response_model=Session)
async def take_over_session(
    session_id: SessionIn, caller: Asking, store: Store, body: TakeOver | None = None
) -> SessionRow:
    """Answer in the agent's place from now on; `POST …/say` speaks."""
    await check_session(store, caller, session_id)
    person = (body and body.person) or caller.user or caller.name
    await store.try_once(sessions.set_mode(session_id, "paused", person))
    return await find_session(store, caller, session_id)


@router.post("/{session_id}/give-back", response_model=Session)
async def give_session_back(
    session_id: SessionIn, caller: Asking, store: Store, body: GiveBack | None = None
) -> SessionRow:
    """Let the agent go on; the note becomes part of its checkpoint."""
    await check_session(store, caller, session_id)
    await store.try_once(sessions.give_back(session_id, body.note if body else None))
    return await find_session(store, caller, session_id)


async def _set_mode(
    session: str, mode: Literal["open", "paused", "closed"], caller: Asking, store: Store
) -> SessionRow:
    await check_session(store, caller, session)
    await store.try_once(sessions.set_mode(session, mode))
    return await find_session(store, caller, session)
