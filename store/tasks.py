"""Tasks: accepted, opened, committed, read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from psycopg.types.json import Jsonb

from store.errors import InvalidInput
from store.plain import is_text
from store.statement import Rows, Statement, all_of, count, nothing, one_or_none, query, value
from store.types import (
    Decision,
    Json,
    OpenedTask,
    OwnerToken,
    PersonDecision,
    Question,
    QuestionRow,
    StepRecord,
    StepRow,
    TaskId,
    TaskOutcome,
    TaskRow,
    WhenBusy,
    WorkerId,
)


def accept(
    agent: str,
    text: str,
    *,
    session: str | None,
    user: str | None,
    idempotency_key: str | None,
    when_busy: WhenBusy = "queue",
    traceparent: str | None = None,
) -> Statement[TaskId]:
    if not all(given is None or is_text(given) for given in (agent, text, session, user, idempotency_key, traceparent)):
        raise InvalidInput("the input holds characters that are no text")
    return Statement(
        query("accept_task"),
        {
            "agent": agent,
            "input": text,
            "session": session,
            "user": user,
            "key": idempotency_key,
            "when_busy": when_busy,
            "traceparent": traceparent,
        },
        value,
    )


def open_task(task: TaskId, owner: OwnerToken, worker: WorkerId) -> Statement[OpenedTask | None]:
    def read(rows: Rows) -> OpenedTask | None:
        opened = value(rows)
        return OpenedTask.model_validate(opened) if opened is not None else None

    return Statement(query("open_task"), {"task": task, "owner": owner, "worker": worker}, read)


def commit_task(
    task: TaskId,
    owner: OwnerToken,
    *,
    outcome: TaskOutcome,
    output: Json = None,
    error: str | None = None,
    messages: Sequence[Json] = (),
    context_tokens: int | None = None,
    questions: Sequence[Question] = (),
) -> Statement[None]:
    return Statement(
        query("commit_task"),
        {
            "task": task,
            "owner": owner,
            "outcome": outcome,
            "output": Jsonb(output),
            "error": error,
            "messages": Jsonb(list(messages)),
            "tokens": context_tokens,
            "questions": Jsonb([question.model_dump() for question in questions]),
        },
        nothing,
    )


def give_back(task: TaskId, owner: OwnerToken) -> Statement[None]:
    return Statement(query("give_back_task"), {"task": task, "owner": owner}, nothing)


def read_task(task: str) -> Statement[TaskRow | None]:
    return Statement(query("read_task"), {"task": task}, one_or_none(TaskRow))


def list_tasks(
    *,
    session: str | None = None,
    status: str | None = None,
    user: str | None = None,
    limit: int = 100,
    after: tuple[datetime, int, str] | None = None,
) -> Statement[list[TaskRow]]:
    """Newest first; those that come after a moment, a place and an id in that order."""
    moment, seq, last = after or (None, None, None)
    wanted = {
        "session": session, "status": status, "user": user, "limit": limit, "moment": moment, "seq": seq,
        "after": last,
    }  # fmt: skip
    return Statement(query("list_tasks"), wanted, all_of(TaskRow))


def list_steps(task: str, *, after: int = -1, limit: int | None = None) -> Statement[list[StepRow]]:
    return Statement(query("list_steps"), {"task": task, "after": after, "limit": limit}, all_of(StepRow))


def list_in_flight() -> Statement[list[OpenedTask]]:
    """Those with steps on record, oldest first."""
    return Statement(query("list_tasks_in_flight"), {}, all_of(OpenedTask))


def read_records(task: TaskId) -> Statement[list[StepRecord]]:
    return Statement(query("read_records"), {"task": task}, all_of(StepRecord))


def list_questions(
    *,
    session: str | None = None,
    task: str | None = None,
    user: str | None = None,
    limit: int | None = None,
    after: tuple[datetime, str, str] | None = None,
) -> Statement[list[QuestionRow]]:
    """Oldest first; those that come after a moment, a task and a call in that order."""
    moment, last, call = after or (None, None, None)
    wanted = {
        "session": session, "task": task, "user": user, "limit": limit, "moment": moment, "after": last, "call": call,
    }  # fmt: skip
    return Statement(query("list_questions"), wanted, all_of(QuestionRow))


def decide(
    task: str, call: str, decision: Decision, note: str | None, arguments: dict[str, Json] | None = None
) -> Statement[TaskId | None]:
    return Statement(
        query("decide_call"),
        {
            "task": task,
            "call": call,
            "decision": decision,
            "note": note,
            "arguments": Jsonb(arguments) if arguments is not None else None,
        },
        value,
    )


def cancel(task: str, why: str | None) -> Statement[None]:
    return Statement(query("cancel_task"), {"task": task, "why": why}, nothing)


def stop_here(task: TaskId, owner: OwnerToken) -> Statement[None]:
    return Statement(query("stop_here"), {"task": task, "owner": owner}, nothing)


def honour(task: TaskId, owner: OwnerToken, owed: PersonDecision, call: str) -> Statement[None]:
    return Statement(
        query("honour_decision"),
        {"task": task, "owner": owner, "asked_by": owed.asked_by, "asked_call": owed.call_id, "call": call},
        nothing,
    )


def deliver_steers(task: TaskId, owner: OwnerToken, place: int) -> Statement[None]:
    return Statement(query("deliver_steers"), {"task": task, "owner": owner, "place": place}, nothing)


def expire_approvals() -> Statement[int]:
    """How many questions nobody answered in time."""
    return Statement(query("expire_approvals"), {}, count)


def find_continuation(task: str) -> Statement[TaskId | None]:
    def first(rows: Rows) -> TaskId | None:
        return value(rows) if rows else None

    return Statement(query("find_continuation"), {"task": task}, first)


def find_start(task: str) -> Statement[int]:
    """The place in its session's journal after which a task's story begins."""
    return Statement(query("find_start"), {"task": task}, lambda rows: int(value(rows)) if rows else 0)


def find_asker(session: str, call: str) -> Statement[TaskId | None]:
    """The task that asked about a call."""
    return Statement(
        query("find_asker"), {"session": session, "call": call}, lambda rows: value(rows) if rows else None
    )


def count_by_status() -> Statement[dict[str, int]]:
    return Statement(query("count_tasks"), {}, lambda rows: {str(row["status"]): int(row["tasks"]) for row in rows})
