"""A conversation as people read it: who said what, which tools were called, what interrupted it, what waits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from pydantic_ai.messages import ModelMessagesTypeAdapter

from agent.chronicle import retell
from store import continuity, overview, sessions, tasks
from store.database import Database
from store.types import Json, NoticeRow, OpenedTask, QuestionRow, SaidRow, TaskRow

Kind = Literal["user", "agent", "person", "thinking", "tool", "notice", "error", "summary"]

MOST_TASKS = 500
MOST_ENTRIES = 300
UNSAID = ("queued", "running", "failed", "dead")
"""Tasks of which nothing is in the conversation yet are shown when they are one of these."""


@dataclass
class Entry:
    kind: Kind
    text: str = ""
    id: str = ""
    at: datetime | None = None
    task_id: str | None = None
    seq: int | None = None
    """The place in the journal up to which a fork from here has the past."""
    tool: str = ""
    arguments: Json = None
    result: Json = None
    has_result: bool = False
    question: QuestionRow | None = None
    notice: NoticeRow | None = None
    status: str = ""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Talk:
    entries: list[Entry]
    hidden: int
    running: TaskRow | None


async def read_talk(database: Database, session: str, *, whole: bool = False) -> Talk:
    said = await database.try_once(sessions.read_conversation(session))
    known = await database.try_once(tasks.list_tasks(session=session, limit=MOST_TASKS))
    notices = await database.try_once(continuity.list_notices(session))
    questions = await database.try_once(tasks.list_questions(session=session))
    begun = await database.try_once(overview.read_next_task(session))
    by_id = {row.task_id: row for row in known}
    entries = list(_told(said, by_id, {row.notice_id: row for row in notices}))
    spoken = {row.task_id for row in said if row.position is not None}
    for row in sorted(known, key=lambda row: row.seq or 0):
        if row.task_id not in spoken and row.status in UNSAID:
            about = [entry for entry in entries if entry.notice is not None and entry.notice.task_id == row.task_id]
            entries = [entry for entry in entries if entry not in about]
            entries += [*await _under_way(database, row, begun), *about]
    _attach(entries, questions)
    shown = entries if whole else entries[-MOST_ENTRIES:]
    running = next((row for row in known if row.status == "running"), None)
    return Talk(shown, len(entries) - len(shown), running)


def _told(said: Sequence[SaidRow], known: dict[Any, TaskRow], notices: dict[int, NoticeRow]) -> Iterable[Entry]:
    calls: dict[str, Entry] = {}
    for index, row in enumerate(said):
        if row.notice_id is not None:
            notice = notices.get(row.notice_id)
            if notice is not None:
                yield Entry("notice", notice.body, f"n{row.notice_id}", row.at, notice=notice, status=notice.kind)
            continue
        task = known.get(row.task_id)
        is_person = task is not None and task.kind == "person"
        entries = list(entries_of(row.message, calls, is_person=is_person))
        for number, entry in enumerate(entries):
            entry.id, entry.at, entry.task_id = f"m{row.position}-{number}", row.at, row.task_id
        later = next((other for other in said[index + 1 :] if other.position is not None), None)
        is_last = later is None or later.task_id != row.task_id
        if is_last and entries:
            entries[-1].seq = row.seq
        yield from entries
        if is_last and task is not None and task.status in ("failed", "cancelled", "dead"):
            yield Entry(
                "error", task.error or "", f"e{row.position}", task.finished_at, row.task_id, status=task.status
            )


async def _under_way(database: Database, task: TaskRow, begun: OpenedTask | None) -> list[Entry]:
    """A task that has not ended: its input, and what it has said and done on record."""
    entries: list[Entry] = []
    if task.kind != "continuation":
        entries.append(Entry("user", task.input, f"t{task.task_id}", task.accepted_at, status=task.status))
    if task.status in ("running", "queued") and task.started_at is not None:
        records = await database.try_once(tasks.read_records(task.task_id))
        calls: dict[str, Entry] = {}
        for message in ModelMessagesTypeAdapter.dump_python(retell(records), mode="json"):
            entries += entries_of(message, calls)
    if begun is not None and begun.task_id == task.task_id:
        entries += [Entry("user", steer.input, status="steering") for steer in begun.steers]
    if task.status in ("failed", "dead"):
        entries.append(Entry("error", task.error or "", at=task.finished_at, status=task.status))
    for number, entry in enumerate(entries):
        entry.id, entry.task_id = f"t{task.task_id}-{number}", task.task_id
    if task.status == "queued" and entries:
        entries[-1].facts = {"runs_after": task.runs_after, "crashes": task.crashes}
    return entries


def entries_of(message: Json, calls: dict[str, Entry], *, is_person: bool = False) -> Iterable[Entry]:
    """The parts of one message; results go to the calls they belong to."""
    for part in message.get("parts", ()):
        match part.get("part_kind"):
            case "user-prompt":
                yield Entry("user", _text(part.get("content")))
            case "text" if part.get("content"):
                yield Entry("person" if is_person else "agent", part["content"])
            case "thinking" if part.get("content"):
                yield Entry("thinking", part["content"])
            case "compaction":
                yield Entry("summary", part.get("content") or "")
            case "tool-call" | "builtin-tool-call":
                entry = Entry("tool", tool=str(part["tool_name"]), arguments=_arguments(part.get("args")))
                calls[part["tool_call_id"]] = entry
                entry.facts["call_id"] = part["tool_call_id"]
                yield entry
            case "tool-return" | "builtin-tool-return" | "retry-prompt" if part.get("tool_call_id") in calls:
                entry = calls[part["tool_call_id"]]
                entry.result, entry.has_result = part.get("content"), True
                entry.status = "retry" if part["part_kind"] == "retry-prompt" else part.get("outcome") or ""
            case "retry-prompt":
                yield Entry("error", _text(part.get("content")), status="asked again")
            case _:
                pass


def _attach(entries: list[Entry], questions: Sequence[QuestionRow]) -> None:
    """Each question stands with the call it is about."""
    for question in questions:
        for entry in reversed(entries):
            if entry.kind == "tool" and entry.facts.get("call_id") == question.call_id:
                entry.question = question
                break
        else:
            entries.append(
                Entry("tool", id=f"q{question.call_id}", tool=question.tool, arguments=question.arguments,
                      task_id=question.task_id, question=question)
            )  # fmt: skip


def _arguments(given: Json) -> Json:
    """Models write them as text; people read them as data, if they are that."""
    try:
        return json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return given


def _text(content: Json) -> str:
    match content:
        case str():
            return content
        case list():
            return "\n".join(
                each if isinstance(each, str) else f"[{each.get('kind', 'attachment')}]" for each in content
            )
        case _:
            return str(content)
