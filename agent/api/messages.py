"""What is said in a session: by the user, by the agent, by a person in its place."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header
from pydantic import ConfigDict, Field

from agent import tracing
from agent.api.answers import Accepted, ChatMessage
from agent.api.caller import Asking, Store, check_session, find_session, user_for
from agent.api.page import Cursor, Limit, Listing, Page
from agent.api.words import IdempotencyKey, Input, Name, Request, SessionIn, Text
from agent.keyring import Caller
from store import sessions, tasks
from store.database import Database
from store.errors import Conflict, NotFound
from store.types import SaidRow, SessionRow, TaskRow, WhenBusy

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["messages"])

CONVERSATION = Listing("conversation", tuple[Literal["message", "notice"], int])


class NewMessage(Request):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"agent": "support", "input": "Refund order 17", "user": "ana"}]}
    )

    input: Input = Field(description="At most 1 MiB, and not only white space.")
    agent: Name | None = Field(None, description="Needed for a new session only.")
    user: Name | None = Field(None, description="On whose behalf; a session belongs to the user of its first message.")
    when_busy: WhenBusy = Field(
        "queue",
        description="While a task runs: wait for the turn, reach the running task before its next model request"
        " (`steer`), or end it at its next step and run next (`interrupt`).",
    )


class Speech(Request):
    text: Text = Field(min_length=1, max_length=1_048_576)
    person: Name | None = None


@router.post("/messages", status_code=202, response_model=Accepted)
async def send_message(
    session_id: SessionIn,
    body: NewMessage,
    caller: Asking,
    store: Store,
    key: IdempotencyKey = None,
    traceparent: Annotated[str | None, Header(max_length=100, description="The trace it belongs to.")] = None,
) -> TaskRow:
    """Give the agent an input. When this answers, the task is durable and will run. A session that is not there is
    made."""
    return await accept_message(
        store,
        caller,
        session_id,
        body.input,
        agent=body.agent,
        user=body.user,
        key=key,
        when_busy=body.when_busy,
        traceparent=traceparent,
    )


@router.get("/messages", response_model=Page[ChatMessage])
async def list_messages(
    session_id: SessionIn, caller: Asking, store: Store, limit: Limit = 100, cursor: Cursor = None
) -> dict[str, Any]:
    """Read the conversation, oldest first, also what a compaction has covered; notices stand where they happened."""
    await find_session(store, caller, session_id)
    after = CONVERSATION.after(cursor)
    rows = await store.try_once(sessions.read_conversation(session_id, after=after, limit=limit + 1))
    return CONVERSATION.page(rows, limit, _place)


@router.post("/say", status_code=202, response_model=Accepted)
async def say(session_id: SessionIn, body: Speech, caller: Asking, store: Store) -> TaskRow | None:
    """Speak in the agent's place, after taking the session over."""
    await check_session(store, caller, session_id)
    person = body.person or caller.user or caller.name
    task_id = await store.try_once(sessions.speak(session_id, person, body.text))
    return await store.try_once(tasks.read_task(task_id))


async def accept_message(
    store: Database,
    caller: Caller,
    session: str,
    text: str,
    *,
    agent: str | None,
    user: str | None,
    key: str | None,
    when_busy: WhenBusy = "queue",
    traceparent: str | None = None,
) -> TaskRow:
    """The task of an input; the one it was given before, if the key is the same."""
    known = await _known(store, caller, session)
    if known is None and agent is None:
        raise NotFound(f"there is no session {session!r}; name an agent to make it")
    whose = user_for(caller, user if known is None else user or known.user_id)
    task_id = await store.try_once(
        tasks.accept(
            agent or (known.agent if known else ""),
            text,
            session=session,
            user=whose,
            idempotency_key=key,
            when_busy=when_busy,
            traceparent=tracing.current() or traceparent,
        )
    )
    if known is not None and known.title is None:
        await store.try_once(sessions.name(session, sessions.title_for(text), only_if_missing=True))
    row = await store.try_once(tasks.read_task(task_id))
    if row is None:
        raise NotFound(f"the session {session!r} was deleted")
    if row.session_id != session or (when_busy == "queue" and row.input != text):
        raise Conflict("this Idempotency-Key was used for another message")
    return row


def _place(row: SaidRow) -> tuple[Literal["message", "notice"], int]:
    return ("notice", row.notice_id) if row.position is None and row.notice_id else ("message", row.position or 0)


async def _known(database: Database, caller: Caller, session: str) -> SessionRow | None:
    row = await database.try_once(sessions.read_session(session))
    if row is not None and not caller.sees(row.user_id):
        raise NotFound(f"there is no session {session!r}")
    return row
