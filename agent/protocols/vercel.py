"""Vercel AI: `POST /v1/vercel/{agent}` and `GET /v1/vercel/{agent}/{chat}/stream`, for `useChat` and `Chat` of `ai`.

A chat is a session, a user's message is a task. The stream of a chat tells the newest answer again from its start,
whether it is still being made or not: a client that was cut off replaces what it has with what it is told. The protocol
cannot take back what was told on the same connection; when that is needed, the stream ends with an error that says so,
and resuming gives the answer as it is now.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
from pydantic import AfterValidator, ValidationError
from pydantic_ai.ui.vercel_ai import VercelAIAdapter, VercelAIEventStream
from pydantic_ai.ui.vercel_ai._utils import iter_tool_approval_responses
from pydantic_ai.ui.vercel_ai.request_types import RequestData, TextUIPart, UIMessage
from starlette.responses import Response, StreamingResponse

from agent.api.caller import Asking, Store, find_session
from agent.api.door import SLASH
from agent.api.events import Ringing
from agent.protocols import thread, wire
from agent.protocols.account import Account, Broken, Told, first_of
from agent.protocols.retelling import TakenBack
from agent.protocols.thread import Answer
from store import tasks
from store.errors import InvalidInput, NotFound
from store.types import TaskRow

router = APIRouter(prefix="/v1/vercel", include_in_schema=False)  # the contract is the protocol's

AgentName = Annotated[str, Path(min_length=1, max_length=200)]
Chat = Annotated[str, Path(min_length=1, max_length=200), AfterValidator(lambda given: given.replace(SLASH, "/"))]

SDK: Final = 6
"""The version of the protocol; 7 is the same on the wire."""


@router.post("/{agent}")
async def chat(agent: AgentName, request: Request, caller: Asking, store: Store, bell: Ringing) -> StreamingResponse:
    try:
        given: RequestData = VercelAIAdapter.build_run_input(await request.body())
    except ValidationError as error:
        raise InvalidInput(f"this is no chat: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from None
    if given.trigger == "regenerate-message":
        raise InvalidInput("an answer is not given twice; send the message again, or rewind the session first")
    session = thread.check_id(given.id, "id")
    last = given.messages[-1] if given.messages else None
    if last is None or last.role == "system":
        raise InvalidInput("the last message is a user's, or an assistant's with decisions")
    if last.role == "assistant":
        task = await thread.decide(store, caller, session, await _answers(store, session, last))
        return _tell(Account(store, bell, task), last.id)
    key = f"vercel:{session}:{thread.check_id(last.id, 'id of the message')}"
    user = (given.model_extra or {}).get("user")
    task = await thread.say(store, caller, agent=agent, session=session, text=_text(last), key=key, user=user)
    return _tell(Account(store, bell, task), task.task_id)


@router.get("/{agent}/{chat_id}/stream", response_model=None)
async def resume(
    agent: AgentName, chat_id: Chat, caller: Asking, store: Store, bell: Ringing
) -> StreamingResponse | Response:
    try:
        await find_session(store, caller, chat_id)
    except NotFound:
        return Response(status_code=204)  # a chat nobody has said anything in yet
    newest = await store.try_once(tasks.list_tasks(session=chat_id, limit=1))
    if not newest:
        return Response(status_code=204)
    task: TaskRow = newest[0]
    return _tell(Account(store, bell, task, whole=True), (await first_of(store, task)).task_id)


def _tell(account: Account, message: str) -> StreamingResponse:
    telling: VercelAIEventStream[Any, Any] = VercelAIEventStream(sdk_version=SDK, server_message_id=message)
    return wire.stream(telling.encode_stream(telling.transform_stream(_forward(account))), telling.response_headers)


async def _forward(account: Account) -> AsyncIterator[Told]:
    async for event in account.tell():
        if isinstance(event, TakenBack):
            raise Broken("the answer is given anew; resume the stream")
        yield event


def _text(message: UIMessage) -> str:
    if any(part.type == "file" for part in message.parts):
        raise InvalidInput("the last message holds more than text; agents are given text")
    return "\n".join(part.text for part in message.parts if isinstance(part, TextUIPart))


async def _answers(store: Store, session: str, message: UIMessage) -> dict[str, Answer]:
    answers = {
        call: Answer("approved") if approval.approved else Answer("denied", approval.reason)
        for call, approval in iter_tool_approval_responses([message])
    }
    questions = {row.call_id for row in await store.try_once(tasks.list_questions(session=session))}
    for part in message.parts:
        call, state = getattr(part, "tool_call_id", None), getattr(part, "state", None)
        if call in questions and state == "output-available":
            answers[str(call)] = Answer("answered", str(getattr(part, "output", "")))
    if not answers:
        raise InvalidInput("the last message is an assistant's, and decides nothing that was asked")
    return answers
