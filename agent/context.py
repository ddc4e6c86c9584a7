"""What a model is sent, made from what is stored. Pure: rows in, messages out.

Messages are JSON data here, in the form Pydantic AI stores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from store.types import Json, OpenedTask, StoredMessage, TaskId

WAITING = "This call has not run: it waits for a person's decision."
UNANSWERED = "This call has no recorded result: its task ended before it."


def assemble(stored: Sequence[StoredMessage], task: OpenedTask) -> list[Json]:
    """The history of a task: every exchange whole, each call followed by its result.

    A task and those that continue it are one exchange, placed where it was last touched, so that other
    turns never stand between a call and its result. The exchange that this task continues comes last, with
    its open calls left open for the decisions that answer them.
    """
    exchanges: dict[TaskId, list[StoredMessage]] = {}
    roots: dict[TaskId, TaskId] = {}
    for row in stored:
        root = roots.get(row.continues, row.continues) if row.continues else row.task_id
        roots[row.task_id] = root
        exchanges[root] = [*exchanges.pop(root, []), row]
    continued = exchanges.pop(roots[task.continues]) if task.continues in roots else []
    history: list[Json] = []
    for rows in exchanges.values():
        history.extend(closed([row.message for row in rows], WAITING if rows[-1].is_waiting else UNANSWERED))
    history.extend(row.message for row in continued)
    return history


def closed(messages: Sequence[Json], note: str) -> list[Json]:
    """The messages with an answer for every call that has none, so that no provider refuses them."""
    whole: list[Json] = []
    for message, following in pairwise([*messages, None]):
        assert message is not None
        whole.append(message)
        if message.get("kind") != "response":
            continue
        answered = set(_answered(following)) if following is not None else set[str]()
        if missing := [part for part in _calls(message) if part["tool_call_id"] not in answered]:
            whole.append({"kind": "request", "parts": [_answer(part, note) for part in missing]})
    return whole


def _calls(message: Json) -> Iterable[Json]:
    return (part for part in message.get("parts", ()) if part.get("part_kind") == "tool-call")


def _answered(message: Json) -> Iterable[str]:
    return (part["tool_call_id"] for part in message.get("parts", ()) if part.get("tool_call_id"))


def _answer(call: Json, note: str) -> Json:
    return {
        "part_kind": "tool-return",
        "tool_name": call["tool_name"],
        "tool_call_id": call["tool_call_id"],
        "content": note,
    }
