"""OpenAI Responses: `POST /v1/responses` and `GET /v1/responses/{id}`, for the `openai` clients.

`model` names the agent. A conversation is a session, a response is a task: `resp_` and the task's id.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import AgentRunResultEvent
from pydantic_ai.exceptions import RunCancelled

from agent.api.caller import Asking, Store, find_task
from agent.api.events import Ringing
from agent.api.words import IdempotencyKey, Name, Text
from agent.keyring import Caller
from agent.protocols import thread, wire
from agent.protocols.account import Account, Broken, Stopping, as_text
from agent.protocols.output import Output, Wire
from agent.protocols.thread import Answer
from store import tasks
from store.database import Database
from store.errors import InvalidInput, NotFound, Unreachable
from store.types import TaskRow

router = APIRouter(prefix="/v1/responses", include_in_schema=False)  # the contract is OpenAI's

PREFIX = "resp_"


class Conversation(BaseModel):
    id: Name


class Item(BaseModel):
    """Of the input. What a client may say here, and no more."""

    type: Literal["message", "mcp_approval_response"] = "message"
    role: str = "user"
    content: str | list[dict[str, Any]] = ""
    approval_request_id: str = ""
    approve: bool = False
    reason: str | None = None


class NewResponse(BaseModel):
    """Settings of models pass unheeded, for agents bring their own; what would change the meaning is refused."""

    model_config = ConfigDict(extra="ignore")

    model: Name
    input: Text | list[Item]
    stream: bool = False
    background: bool = False
    previous_response_id: Name | None = None
    conversation: Name | Conversation | None = None
    user: Name | None = None
    instructions: str | None = None
    tools: list[Any] = Field(default_factory=list)
    metadata: dict[str, Any] | None = None


@router.post("", response_model=None)
async def create_response(
    body: NewResponse, request: Request, caller: Asking, store: Store, bell: Ringing, key: IdempotencyKey = None
) -> Response:
    if body.instructions or body.tools:
        raise InvalidInput("an agent has its own instructions and tools; leave out instructions and tools")
    session = await _session(body, caller, store, key)
    if answers := _answers(body):
        task = await thread.decide(store, caller, session, answers)
    else:
        mine = f"responses:{key}" if key else None
        task = await thread.say(
            store, caller, agent=body.model, session=session, text=_words(body), key=mine, user=body.user
        )
    account = Account(store, bell, task)
    if body.stream:
        return wire.stream(_stream(account, body.background))
    if body.background:
        return JSONResponse(_shown(task, "queued", [], background=True))
    return JSONResponse(await _whole(account))


@router.get("/{response_id}", response_model=None)
async def read_response(
    response_id: str,
    caller: Asking,
    store: Store,
    bell: Ringing,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
) -> Response:
    task = await _task(store, caller, response_id)
    account = Account(store, bell, task)
    if stream:
        return wire.stream(_stream(account, True, starting_after))
    if task.status in ("queued", "running"):
        return JSONResponse(_shown(task, "queued" if task.status == "queued" else "in_progress", []))
    return JSONResponse(await _whole(account))


@router.post("/{response_id}/cancel", response_model=None)
async def cancel_response(response_id: str, caller: Asking, store: Store) -> Response:
    task = await _task(store, caller, response_id)
    await store.try_once(tasks.cancel(task.task_id, None))
    return JSONResponse(_shown(task, "cancelled", []))


async def _whole(account: Account) -> Wire:
    last: Wire = {}
    try:
        async for event in _events(account, False, None):
            last = event
    except Stopping as stopping:
        raise Unreachable(str(stopping)) from None
    return dict(last["response"])


async def _stream(account: Account, background: bool, after: int | None = None) -> AsyncIterator[str]:
    try:
        async for event in _events(account, background, after):
            yield f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False, default=str)}\n\n"
    except Stopping as stopping:
        error = {"type": "error", "code": "server_error", "message": str(stopping), "param": None}
        yield f"event: error\ndata: {json.dumps(error)}\n\n"


async def _events(account: Account, background: bool, after: int | None) -> AsyncIterator[Wire]:
    task, output = account.task, Output(account.task.task_id, account.task.agent, after)
    beginning = _shown(task, "in_progress", [], background=background)
    for event in (*output.event("created", response=beginning), *output.event("in_progress", response=beginning)):
        yield event
    try:
        async for told in account.tell():
            for event in _end(account, output, told) if isinstance(told, AgentRunResultEvent) else output.hear(told):
                yield event
    except RunCancelled:
        status, error = "cancelled", None
    except Stopping:
        raise
    except Broken as broken:
        status, error = "failed", str(broken)
    else:
        status, error = "completed", None
    end = _shown(account.task, status, output.items, background=background, error=error)
    end["id"] = beginning["id"]
    kind = {"cancelled": "incomplete"}.get(status, status)
    output._after = -1  # the last event tells how it ended, to whoever asks
    for event in output.event(kind, response=end):
        yield event


def _end(account: Account, output: Output, told: AgentRunResultEvent[Any]) -> Any:
    if account.task.status == "waiting":
        for question in account.questions:
            yield from output.ask(question)
    elif not any(item["type"] == "message" for item in output.items) and told.result.output is not None:
        yield from output.say(as_text(told.result.output))  # an output that is data, not prose


def _shown(
    task: TaskRow, status: str, items: list[Wire], *, background: bool = False, error: str | None = None
) -> Wire:
    return {
        "id": f"{PREFIX}{task.task_id}",
        "object": "response",
        "created_at": task.accepted_at.timestamp(),
        "status": status,
        "model": task.agent,
        "output": items,
        "conversation": {"id": task.session_id},
        "background": background,
        "error": {"code": "server_error", "message": error} if error else None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }


async def _task(store: Database, caller: Caller, response: str) -> TaskRow:
    if not response.startswith(PREFIX):
        raise NotFound(f"there is no response {response!r}")
    return await find_task(store, caller, response.removeprefix(PREFIX))


async def _session(body: NewResponse, caller: Caller, store: Database, key: str | None) -> str:
    if body.previous_response_id is not None:
        if body.conversation is not None:
            raise InvalidInput("give a conversation or a previous_response_id, not both")
        return (await _task(store, caller, body.previous_response_id)).session_id
    match body.conversation:
        case Conversation(id=given) | str(given):
            return given
        case _:
            return thread.new_session(caller, body.user, f"responses:{key}" if key else None)


def _words(body: NewResponse) -> str:
    if isinstance(body.input, str):
        return body.input
    if len(body.input) != 1 or body.input[0].role != "user":
        raise InvalidInput("give one message of the user's; what was said before is in the conversation")
    content = body.input[0].content
    if isinstance(content, str):
        return content
    if any(part.get("type") not in ("input_text", "text") for part in content):
        raise InvalidInput("the message holds more than text; agents are given text")
    return "\n".join(str(part.get("text", "")) for part in content)


def _answers(body: NewResponse) -> dict[str, Answer]:
    items = body.input if isinstance(body.input, list) else []
    return {
        item.approval_request_id: Answer("approved") if item.approve else Answer("denied", item.reason)
        for item in items
        if item.type == "mcp_approval_response"
    }
