"""Tasks: looked at, decided, ended, tried again."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from agent.api.answers import Decided, Question, Step, Task
from agent.api.caller import Asking, Store, check_task, find_session, find_task, user_for
from agent.api.page import Cursor, Limit, Listing, Page
from agent.api.words import Data, Input, Name, Note, Request, SessionIn, TaskIn, Text, Word
from store import supervision, tasks
from store.database import Database
from store.types import Decision, TaskRow, TaskStatus

router = APIRouter(prefix="/v1", tags=["tasks"])

TASKS = Listing("tasks", tuple[datetime, int, str])
STEPS = Listing("steps", int)
QUESTIONS = Listing("questions", tuple[datetime, str, str])


class Approval(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"call_id": "call_8812"}]})

    call_id: Name
    arguments: Data | None = Field(None, description="Run the call with these instead of the model's own.")


class Denial(Request):
    call_id: Name
    reason: Note | None = Field(None, description="What the model is told.")


class Answer(Request):
    call_id: Name
    text: Text = Field(min_length=1, max_length=100_000)


class Reason(Request):
    reason: Note | None = None


class Again(Request):
    input: Input | None = Field(None, description="Other words; a new task then takes its place.")


@router.get("/tasks", response_model=Page[Task])
async def list_tasks(
    caller: Asking,
    store: Store,
    status: TaskStatus | None = None,
    user: Word = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """List tasks, newest first."""
    whose = user_for(caller, user)
    rows = await store.try_once(tasks.list_tasks(status=status, user=whose, limit=limit + 1, after=TASKS.after(cursor)))
    return TASKS.page(rows, limit, _place)


@router.get("/sessions/{session_id}/tasks", response_model=Page[Task])
async def list_tasks_of_session(
    session_id: SessionIn,
    caller: Asking,
    store: Store,
    status: TaskStatus | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """List a session's tasks, newest first."""
    await find_session(store, caller, session_id)
    rows = await store.try_once(
        tasks.list_tasks(session=session_id, status=status, limit=limit + 1, after=TASKS.after(cursor))
    )
    return TASKS.page(rows, limit, _place)


@router.get("/questions", response_model=Page[Question])
async def list_questions(
    caller: Asking,
    store: Store,
    user: Word = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """List calls that wait for a person, oldest first."""
    whose = user_for(caller, user)
    rows = await store.try_once(tasks.list_questions(user=whose, limit=limit + 1, after=QUESTIONS.after(cursor)))
    return QUESTIONS.page(rows, limit, lambda row: (row.requested_at, row.task_id, row.call_id))


@router.get("/tasks/{task_id}", response_model=Task)
async def read_task(task_id: TaskIn, caller: Asking, store: Store) -> TaskRow:
    """Look at a task."""
    return await find_task(store, caller, task_id)


@router.get("/tasks/{task_id}/steps", response_model=Page[Step])
async def list_steps(
    task_id: TaskIn, caller: Asking, store: Store, limit: Limit = 100, cursor: Cursor = None
) -> dict[str, Any]:
    """List a task's recorded steps in the order they began."""
    await find_task(store, caller, task_id)
    after = STEPS.after(cursor)
    rows = await store.try_once(tasks.list_steps(task_id, after=-1 if after is None else after, limit=limit + 1))
    return STEPS.page(rows, limit, lambda row: row.step)


@router.get("/tasks/{task_id}/questions", response_model=list[Question])
async def list_questions_of_task(task_id: TaskIn, caller: Asking, store: Store) -> Any:
    """List the calls of a task that wait for a person."""
    await find_task(store, caller, task_id)
    return await store.try_once(tasks.list_questions(task=task_id))


@router.post("/tasks/{task_id}/approve", response_model=Decided)
async def approve_call(task_id: TaskIn, body: Approval, caller: Asking, store: Store) -> Decided:
    """Let a waiting call run."""
    await check_task(store, caller, task_id)
    return await _decide(store, task_id, body.call_id, "approved", None, body.arguments)


@router.post("/tasks/{task_id}/deny", response_model=Decided)
async def deny_call(task_id: TaskIn, body: Denial, caller: Asking, store: Store) -> Decided:
    """Refuse a waiting call; the model is told the reason."""
    await check_task(store, caller, task_id)
    return await _decide(store, task_id, body.call_id, "denied", body.reason)


@router.post("/tasks/{task_id}/answer", response_model=Decided)
async def answer_question(task_id: TaskIn, body: Answer, caller: Asking, store: Store) -> Decided:
    """Answer what the agent asked."""
    await check_task(store, caller, task_id)
    return await _decide(store, task_id, body.call_id, "answered", body.text)


@router.post("/tasks/{task_id}/cancel", status_code=202, response_model=Task)
async def cancel_task(task_id: TaskIn, caller: Asking, store: Store, body: Reason | None = None) -> TaskRow:
    """End a task: at once when it has not begun, before its next step when it runs."""
    await check_task(store, caller, task_id)
    await store.try_once(tasks.cancel(task_id, body.reason if body else None))
    return await find_task(store, caller, task_id)


@router.post("/tasks/{task_id}/retry", status_code=202, response_model=Task)
async def retry_task(task_id: TaskIn, caller: Asking, store: Store, body: Again | None = None) -> TaskRow:
    """Put a dead letter back: it goes on from its records, or a new task with other words takes its place."""
    await check_task(store, caller, task_id)
    following = await store.try_once(supervision.retry(task_id, body.input if body else None))
    return await find_task(store, caller, following)


@router.post("/tasks/{task_id}/discard", response_model=Task)
async def discard_task(task_id: TaskIn, caller: Asking, store: Store, body: Reason | None = None) -> TaskRow:
    """Leave a dead letter for good."""
    await check_task(store, caller, task_id)
    await store.try_once(supervision.discard(task_id, body.reason if body else None))
    return await find_task(store, caller, task_id)


def _place(row: TaskRow) -> tuple[datetime, int, str]:
    return row.accepted_at, row.seq or 0, row.task_id


async def _decide(
    database: Database,
    task: str,
    call: str,
    decision: Decision,
    note: str | None,
    arguments: dict[str, Any] | None = None,
) -> Decided:
    following = await database.try_once(tasks.decide(task, call, decision, note, arguments))
    return Decided(task_id=task, call_id=call, decision=decision, next_task_id=following)
