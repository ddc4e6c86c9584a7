"""What people do in the console. Each form calls the function behind the API's call of the same name."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from agent.api import continuity, messages, sessions, tasks
from agent.api.caller import Asking, Store
from agent.api.words import LARGEST_PLACE, SessionIn, TaskIn
from agent.console.page import Form, Page, done, go
from store.errors import InvalidInput, NotFound

router = APIRouter(prefix="/console", include_in_schema=False, route_class=Page)


@router.post("/sessions/{session_id}/send")
async def send(request: Request, session_id: SessionIn, form: Form, caller: Asking, store: Store) -> Response:
    body = messages.NewMessage.model_validate(_given(form, "input", "when_busy"))
    await messages.send_message(session_id, body, caller, store)
    return done(request, "", at(session_id))


@router.post("/sessions/{session_id}/notices/{notice_id}")
async def answer_notice(
    request: Request,
    session_id: SessionIn,
    notice_id: Annotated[int, Path(ge=1, le=LARGEST_PLACE)],
    form: Form,
    caller: Asking,
    store: Store,
) -> Response:
    is_right = form.get("act") == "right"
    body = continuity.Acknowledgement.model_validate({} if is_right else _given(form, "correction"))
    await continuity.acknowledge_notice(session_id, notice_id, caller, store, body)
    told = "Your correction counts from now on." if body.correction else "Noted."
    return done(request, told, at(session_id))


@router.post("/sessions/{session_id}/fork")
async def fork(request: Request, session_id: SessionIn, form: Form, caller: Asking, store: Store) -> Response:
    body = sessions.Fork.model_validate(_given(form, "title") | _place(form, "at"))
    heir = await sessions.fork_session(session_id, caller, store, body)
    return go(request, at(heir.session_id))


@router.post("/sessions/{session_id}/rewind")
async def rewind(request: Request, session_id: SessionIn, form: Form, caller: Asking, store: Store) -> Response:
    await sessions.rewind_session(session_id, sessions.Rewind.model_validate(_place(form, "to")), caller, store)
    return go(request, at(session_id))


@router.post("/sessions/{session_id}/{act}")
async def govern(
    request: Request, session_id: SessionIn, act: str, form: Form, caller: Asking, store: Store
) -> Response:
    told = ""
    match act:
        case "pause":
            await sessions.pause_session(session_id, caller, store)
            told = "Paused. Messages are kept, and nothing runs."
        case "resume":
            await sessions.resume_session(session_id, caller, store)
            told = "It goes on."
        case "close":
            await sessions.close_session(session_id, caller, store)
        case "reopen":
            await sessions.reopen_session(session_id, caller, store)
        case "rename":
            await sessions.rename_session(session_id, sessions.Change.model_validate(form), caller, store)
        case "take-over":
            await sessions.take_over_session(session_id, caller, store)
            told = "The session is in your hands: what you write is said in the agent's place."
        case "say":
            await messages.say(session_id, messages.Speech.model_validate(_given(form, "text")), caller, store)
        case "give-back":
            note = sessions.GiveBack.model_validate(_given(form, "note"))
            await sessions.give_session_back(session_id, caller, store, note)
            told = "The agent has it again."
        case _:
            raise NotFound(f"nothing here is called {act!r}")
    return done(request, told, at(session_id))


@router.post("/tasks/{task_id}/{act}")
async def decide(request: Request, task_id: TaskIn, act: str, form: Form, caller: Asking, store: Store) -> Response:
    told = ""
    match act:
        case "approve":
            body = tasks.Approval.model_validate(_given(form, "call_id") | _edited(form))
            await tasks.approve_call(task_id, body, caller, store)
            told = "Approved, with your arguments." if body.arguments is not None else "Approved."
        case "deny":
            await tasks.deny_call(
                task_id, tasks.Denial.model_validate(_given(form, "call_id", "reason")), caller, store
            )
            told = "Denied; the model is told so."
        case "answer":
            await tasks.answer_question(
                task_id, tasks.Answer.model_validate(_given(form, "call_id", "text")), caller, store
            )
        case "cancel":
            await tasks.cancel_task(task_id, caller, store)
            told = "It ends before its next step."
        case "retry":
            again = await tasks.retry_task(task_id, caller, store, tasks.Again.model_validate(_words(form)))
            return go(request, at(again.session_id))
        case "discard":
            await tasks.discard_task(task_id, caller, store, tasks.Reason.model_validate(_given(form, "reason")))
            told = "Discarded for good."
        case _:
            raise NotFound(f"nothing here is called {act!r}")
    return done(request, told, "/workers" if act == "discard" else "/")


def at(session: str) -> str:
    return f"/sessions/{quote(session, safe='')}"


def _given(form: dict[str, str], *names: str) -> dict[str, Any]:
    return {name: form[name] for name in names if form.get(name)}


def _place(form: dict[str, str], name: str) -> dict[str, int]:
    try:
        return {name: int(form[name])} if name in form else {}
    except ValueError:
        raise InvalidInput(f"{name} is a place in the journal, a number") from None


def _words(form: dict[str, str]) -> dict[str, str]:
    """Other words for a dead letter, if they are other: the same words go on from the records."""
    return {"input": form["input"]} if form.get("input", "") != form.get("before", "") else {}


def _edited(form: dict[str, str]) -> dict[str, Any]:
    """Arguments, if somebody changed them."""
    if not form.get("arguments"):
        return {}
    try:
        given, before = json.loads(form["arguments"]), json.loads(form.get("before") or "null")
    except (ValueError, RecursionError):
        raise InvalidInput("the arguments are no JSON") from None
    if not isinstance(given, dict):
        raise InvalidInput("the arguments are a JSON object")
    return {} if given == before else {"arguments": given}
