"""AG-UI: `POST /v1/ag-ui/{agent}`, for `@ag-ui/client` and what is built on it.

A thread is a session. A run is a task: whoever posts the same run again is told the same answer from its start. The
stream begins by saying which messages there are before the answer, and says so again when an answer is taken back, so
that nothing a client has kept of an attempt stays.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from ag_ui.core import BaseEvent, Interrupt, MessagesSnapshotEvent, RunAgentInput, RunFinishedInterruptOutcome
from fastapi import APIRouter, Path, Request
from pydantic import ValidationError
from pydantic_ai import DeferredToolRequests, ToolApproved, ToolDenied
from pydantic_ai.exceptions import UserError
from pydantic_ai.ui.ag_ui import AGUIAdapter, AGUIEventStream
from pydantic_ai.ui.ag_ui._interrupt import interrupt_id_to_tool_call_id, resume_entry_to_approval
from starlette.responses import StreamingResponse

from agent.api.caller import Asking, Store
from agent.api.events import Ringing
from agent.protocols import thread, wire
from agent.protocols.account import Account
from agent.protocols.retelling import TakenBack
from agent.protocols.thread import Answer
from store.errors import InvalidInput

router = APIRouter(prefix="/v1/ag-ui", include_in_schema=False)  # the contract is the protocol's

AgentName = Annotated[str, Path(min_length=1, max_length=200)]

QUESTION = "question-"
"""Begins the ids of interrupts that ask for words, as those of Pydantic AI ask for approval."""


class Telling(AGUIEventStream[Any, Any]):
    """Pydantic AI's stream, which can take back, and can ask for words."""

    async def before_stream(self) -> AsyncIterator[BaseEvent]:
        async for event in super().before_stream():
            yield event
        yield self._snapshot()

    async def handle_event(self, event: Any) -> AsyncIterator[BaseEvent]:
        if isinstance(event, TakenBack):
            self._turn = None
            self._pending_tool_calls.clear()
            yield self._snapshot()
            return
        async for each in super().handle_event(event):
            yield each

    def _snapshot(self) -> MessagesSnapshotEvent:
        assert self.run_input is not None
        messages = self.run_input.messages
        last = max((n for n, message in enumerate(messages) if message.role == "user"), default=-1)
        return MessagesSnapshotEvent(messages=messages if _resume(self.run_input) else messages[: last + 1])

    def _build_outcome(self) -> Any:
        output = self._result.output if self._result else None
        if not isinstance(output, DeferredToolRequests) or not output.calls:
            return super()._build_outcome()
        asked = [
            Interrupt(
                id=f"{QUESTION}{call.tool_call_id}",
                reason="input_required",
                tool_call_id=call.tool_call_id,
                message=str(call.args_as_dict().get("question") or call.args_as_dict().get("reason") or call.tool_name),
                response_schema={
                    "type": "object",
                    "properties": {"answer": {"type": "string"}},
                    "required": ["answer"],
                },
            )
            for call in output.calls
        ]
        approvals = super()._build_outcome()
        first = approvals.interrupts if isinstance(approvals, RunFinishedInterruptOutcome) else []
        return RunFinishedInterruptOutcome(interrupts=[*first, *asked])


@router.post("/{agent}")
async def run_agent(
    agent: AgentName, request: Request, caller: Asking, store: Store, bell: Ringing
) -> StreamingResponse:
    try:
        run = AGUIAdapter.build_run_input(await request.body())
    except ValidationError as error:
        raise InvalidInput(f"this is no run of AG-UI: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from None
    session = thread.check_id(run.thread_id, "threadId")
    if answers := _answers(run):
        task = await thread.decide(store, caller, session, answers)
    else:
        key = f"ag-ui:{session}:{thread.check_id(run.run_id, 'runId')}"
        props = run.forwarded_props if isinstance(run.forwarded_props, dict) else {}
        task = await thread.say(
            store, caller, agent=agent, session=session, text=_last_words(run), key=key, user=props.get("user")
        )
    telling = Telling(run, accept=request.headers.get("accept"))
    account = Account(store, bell, task)
    return wire.stream(telling.encode_stream(telling.transform_stream(account.tell())))


def _last_words(run: RunAgentInput) -> str:
    for message in reversed(run.messages):
        if message.role == "user":
            if isinstance(message.content, str):
                return message.content
            if any(part.type != "text" for part in message.content):
                raise InvalidInput("the last message holds more than text; agents are given text")
            return "\n".join(part.text for part in message.content if part.type == "text")
    return ""


def _resume(run: RunAgentInput) -> list[Any]:
    return list(getattr(run, "resume", None) or [])


def _answers(run: RunAgentInput) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    try:
        for entry in _resume(run):
            if entry.interrupt_id.startswith(QUESTION):
                answers[entry.interrupt_id.removeprefix(QUESTION)] = _words(entry)
            else:
                match resume_entry_to_approval(entry):
                    case ToolApproved(override_args=arguments):
                        answer = Answer("approved", None, arguments)
                    case ToolDenied(message=why):
                        answer = Answer("denied", why)
                    case _:
                        raise InvalidInput("an interrupt is approved or denied")
                answers[interrupt_id_to_tool_call_id(entry.interrupt_id)] = answer
    except UserError as error:
        raise InvalidInput(str(error)) from None
    return answers


def _words(entry: Any) -> Answer:
    if entry.status == "cancelled":
        return Answer("denied", "Cancelled by the user.")
    words = entry.payload.get("answer") if isinstance(entry.payload, dict) else None
    if not isinstance(words, str) or not words.strip():
        raise InvalidInput('a question is answered with a payload {"answer": "…"}')
    return Answer("answered", words)
