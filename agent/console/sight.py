"""What the model sees next: made by the code that makes it for the model, and only looked at here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, UserPromptPart
from pydantic_ai_harness.compaction import DEFAULT_CONTEXT_WINDOW, estimate_token_count

from agent.chronicle import retell
from agent.console.talk import Entry, entries_of
from agent.context import RESTORED, tokens_in, waiting_after
from agent.draft import Draft
from agent.recorder import Execution
from agent.request import steered
from agent.workflow import read_history
from store import continuity, overview, sessions, tasks
from store.database import Database
from store.types import AgentCard, OpenedTask, OwnerToken, SessionRow, WorkerId

Group = Literal["agent", "restored", "conversation", "input"]

NEXT = "(Your next message stands here.)"


@dataclass(frozen=True)
class Piece:
    """A part of what is sent, in the order it is sent."""

    group: Group
    title: str
    tokens: int
    text: str = ""
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Sight:
    pieces: list[Piece]
    window: int
    is_running: bool
    messages: list[ModelMessage]

    @property
    def tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)


async def look(database: Database, session: SessionRow, card: AgentCard | None) -> Sight | None:
    task = await database.try_once(overview.read_next_task(session.session_id))
    if task is None:
        return None
    window = session.context_window or DEFAULT_CONTEXT_WINDOW
    draft = await draft_next(database, task, window)
    sent = draft.clamped()
    head = [
        Piece("restored", "how to read what is restored", tokens_in(RESTORED), RESTORED),
        *(Piece("restored", part.origin, tokens_in(part.text), part.text) for part in draft.sections),
    ]
    talk = sent[1:] if draft.sections else sent
    pieces = [
        *await _own(database, task, card),
        *(head if draft.sections else []),
        *(_message(message) for message in talk),
    ]
    if waiting := waiting_after(draft.restored):
        pieces.append(Piece("input", "what waits for its turn (already counted above)", 0, waiting))
    return Sight(pieces, window, bool(task.task_id), sent)


async def draft_next(database: Database, task: OpenedTask, window: int) -> Draft:
    """The request as a worker would draft it now."""
    execution = Execution(task, OwnerToken(""), WorkerId(""), steers=task.steers)
    history = await read_history(database, execution)
    restored = await database.try_once(
        continuity.read_restored(task.session_id, task.task_id, is_recovering=task.is_recovering)
    )
    run: list[ModelMessage] = [] if task.kind == "continuation" else [_prompt(task)]
    if task.task_id:
        records = await database.try_once(tasks.read_records(task.task_id))
        run = [*run, *retell(records)]
    execution.conversation.messages = [*history, *steered(run, task.steers)]
    return Draft(execution, restored, room=window)


def _prompt(task: OpenedTask) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(task.input or NEXT)])


async def _own(database: Database, task: OpenedTask, card: AgentCard | None) -> list[Piece]:
    """What the agent itself puts in front, as far as it is on record: its instructions with the newest request."""
    stored = await database.try_once(
        sessions.read_messages(task.session_id, after=max(0, task.history_through - 20), through=task.history_through)
    )
    instructions = next(
        (row.message["instructions"] for row in reversed(stored) if row.message.get("instructions")), ""
    )
    pieces = (
        [Piece("agent", "instructions of the agent", tokens_in(instructions), instructions)] if instructions else []
    )
    if card is not None and card.tools:
        names = "\n".join(card.tools)
        pieces.append(Piece("agent", f"{len(card.tools)} tools, by name", tokens_in(names), names))
    return pieces


def _message(message: ModelMessage) -> Piece:
    [plain] = ModelMessagesTypeAdapter.dump_python([message], mode="json")
    entries = tuple(entries_of(plain, {})) or tuple(_results(plain))
    is_input = isinstance(message, ModelRequest) and any(isinstance(part, UserPromptPart) for part in message.parts)
    kinds = {entry.kind for entry in entries}
    title = "user" if is_input else "results of calls" if isinstance(message, ModelRequest) else "agent"
    if "tool" in kinds and not is_input and title == "agent":
        title = "agent, calling " + ", ".join(entry.tool for entry in entries if entry.kind == "tool")
    return Piece("conversation", title, estimate_token_count([message]), entries=entries)


def _results(plain: dict[str, Any]) -> list[Entry]:
    return [
        Entry("tool", tool=str(part.get("tool_name") or ""), result=part.get("content"), has_result=True)
        for part in plain.get("parts", ())
        if part.get("tool_call_id")
    ]
