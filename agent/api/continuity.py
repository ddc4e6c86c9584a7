"""What a session was told and left: notices, handoffs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field

from agent.api.answers import Handoff, Notice
from agent.api.caller import Asking, Store, check_session, find_session
from agent.api.page import Cursor, Limit, Listing, Page
from agent.api.words import LARGEST_PLACE, Note, Request, SessionIn
from store import continuity
from store.errors import NotFound
from store.types import HandoffRow, NoticeRow

router = APIRouter(prefix="/v1", tags=["continuity"])

NOTICES = Listing("notices", int)


class Acknowledgement(Request):
    correction: Note | None = Field(None, description="What is wrong in the notice; it outranks what was restored.")


@router.get("/notices", response_model=Page[Notice])
async def list_notices(caller: Asking, store: Store, limit: Limit = 50, cursor: Cursor = None) -> dict[str, Any]:
    """List what users were told about interruptions, oldest first."""
    rows = await store.try_once(
        continuity.list_notices(user=caller.user, after=NOTICES.after(cursor) or 0, limit=limit + 1)
    )
    return NOTICES.page(rows, limit, _number)


@router.get("/sessions/{session_id}/notices", response_model=Page[Notice])
async def list_notices_of_session(
    session_id: SessionIn, caller: Asking, store: Store, limit: Limit = 50, cursor: Cursor = None
) -> dict[str, Any]:
    """List what a session's user was told about interruptions, oldest first."""
    await find_session(store, caller, session_id)
    rows = await store.try_once(continuity.list_notices(session_id, after=NOTICES.after(cursor) or 0, limit=limit + 1))
    return NOTICES.page(rows, limit, _number)


@router.post("/sessions/{session_id}/notices/{notice_id}/acknowledge", response_model=Notice)
async def acknowledge_notice(
    session_id: SessionIn,
    notice_id: Annotated[int, Path(ge=1, le=LARGEST_PLACE)],
    caller: Asking,
    store: Store,
    body: Acknowledgement | None = None,
) -> NoticeRow | None:
    """Answer a notice, with a correction if something in it is wrong."""
    await check_session(store, caller, session_id)
    await store.try_once(continuity.acknowledge(session_id, notice_id, body.correction if body else None))
    return await store.try_once(continuity.read_notice(notice_id))


@router.get("/sessions/{session_id}/handoff", response_model=Handoff)
async def read_handoff(session_id: SessionIn, caller: Asking, store: Store) -> HandoffRow:
    """Read the newest handoff of a session."""
    await find_session(store, caller, session_id)
    found = await store.try_once(continuity.newest_handoff(session_id))
    if found is None:
        raise NotFound(f"session {session_id!r} has no handoff yet")
    return found


def _number(row: NoticeRow) -> int:
    return row.notice_id
