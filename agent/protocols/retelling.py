"""The stream of a session told as events of Pydantic AI: what its agent would have said, had we run it here.

Pieces of an answer in the making are told as they come. An answer that is begun anew goes on silently as long as it
says the same again; only when it differs is what was told taken back, with `TakenBack`, and told from the start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic_ai.messages import (
    CustomEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelResponsePart,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
)

from store.stream import Happening

PARTS: TypeAdapter[list[ModelResponsePart]] = TypeAdapter(list[ModelResponsePart])

SPOKEN = ("text", "thinking", "tool-call")
"""Kinds of parts that come in pieces; others come whole, with the record."""

NOT_CARRIED_OUT = "The call was not carried out as it stood; the model was told why."
FINAL = "Final result processed."


@dataclass(kw_only=True)
class TakenBack(CustomEvent):
    """All that was told is void; what follows is told from the start. So many events of it are on record."""

    settled: int = 0


Event = (
    PartStartEvent | PartDeltaEvent | PartEndEvent | FunctionToolCallEvent | FunctionToolResultEvent | TakenBack
)  # fmt: skip
Outcome = Literal["success", "failed", "denied"]


@dataclass(frozen=True)
class Question:
    """A call that waits for a person."""

    task_id: str
    call_id: str
    tool: str
    arguments: dict[str, Any]
    kind: Literal["approval", "question"]
    reason: str | None

    @property
    def call(self) -> ToolCallPart:
        return ToolCallPart(self.tool, self.arguments, self.call_id)


@dataclass(frozen=True)
class Said:
    """A part of an answer, as far as it is known."""

    kind: str
    text: str
    tool: str = ""
    call_id: str = ""
    record: ModelResponsePart | None = None

    @property
    def part(self) -> ModelResponsePart:
        if self.record is not None:
            return self.record
        match self.kind:
            case "text":
                return TextPart(self.text)
            case "thinking":
                return ThinkingPart(self.text)
            case _:
                return ToolCallPart(self.tool, self.text or None, self.call_id)

    def more_than(self, told: Said) -> TextPartDelta | ThinkingPartDelta | ToolCallPartDelta | None:
        """What is to be told beyond what was."""
        text = self.text[len(told.text) :]
        if not text or not self.text.startswith(told.text):
            return None
        match self.kind:
            case "text":
                return TextPartDelta(text)
            case "thinking":
                return ThinkingPartDelta(content_delta=text)
            case _:
                return ToolCallPartDelta(args_delta=text, tool_call_id=self.call_id)


@dataclass
class Retelling:
    """Feed it what happened, in order; it gives what to tell."""

    questions: dict[str, Question] = field(default_factory=dict)
    response: list[ModelResponsePart] = field(default_factory=list)
    """The parts of the newest answer on record."""
    _told: list[Said] = field(default_factory=list)
    _making: dict[int, Said] = field(default_factory=dict)
    _pending: dict[str, ToolCallPart] = field(default_factory=dict)
    _settled: list[Event] = field(default_factory=list)

    def tell(self, happening: Happening) -> Iterator[Event]:
        data: dict[str, Any] = dict(happening.data)
        match happening.kind:
            case "token":
                self._hear(data)
                yield from self._tell_so_far([said for _, said in sorted(self._making.items())], is_whole=False)
            case "reset" | "model.failed":
                self._making = {}
            case "model.responded":
                yield from self._settle(PARTS.validate_python(data.get("parts") or []))
            case "tool.finished":
                yield from self._finish(data)
            case "approval.requested":
                self._ask(happening.task_id or "", data)
            case "approval.given" | "question.answered" | "approval.denied" | "approval.expired":
                yield from self._decide(happening.kind, data)
            case "task.finished":
                yield from self._close_calls(FINAL, "success")
            case _:
                pass

    def _hear(self, data: dict[str, Any]) -> None:
        number = int(data["part"])
        before = self._making.get(number)
        if before is None:
            said = Said(data["kind"], data["delta"], data.get("tool") or "", data.get("call_id") or "")
        else:
            said = Said(before.kind, before.text + data["delta"], before.tool, before.call_id)
        self._making[number] = said

    def _tell_so_far(self, parts: Sequence[Said], *, is_whole: bool) -> Iterator[Event]:
        """Tell what these parts say beyond what was told; all of it anew where they say something else."""
        parts = [part for part in parts if part.text or part.kind not in ("text", "thinking")]
        if not self._told and parts:
            yield from self._close_calls(NOT_CARRIED_OUT, "failed")
        if not _goes_on(self._told, parts, is_whole=is_whole):
            yield from self._close()
            self._told = []
            yield TakenBack(settled=len(self._settled))
            yield from self._settled
        for number, part in enumerate(parts):
            if number >= len(self._told):
                yield from self._close()
                self._told.append(part)
                yield PartStartEvent(index=number, part=part.part)
            elif (delta := part.more_than(self._told[number])) is not None:
                self._told[number] = part
                yield PartDeltaEvent(index=number, delta=delta)
            elif is_whole:
                self._told[number] = part

    def _close(self) -> Iterator[Event]:
        if self._told:
            yield PartEndEvent(index=len(self._told) - 1, part=self._told[-1].part)

    def _settle(self, parts: list[ModelResponsePart]) -> Iterator[Event]:
        yield from self._tell_so_far([_on_record(part) for part in parts], is_whole=True)
        yield from self._close()
        for number, said in enumerate(self._told):
            self._settled += [PartStartEvent(index=number, part=said.part), PartEndEvent(index=number, part=said.part)]
        self._told, self._making, self.response = [], {}, parts
        for part in parts:
            if isinstance(part, ToolCallPart):
                self._pending[part.tool_call_id] = part
                yield from self._keep(FunctionToolCallEvent(part, args_valid=True))

    def _finish(self, data: dict[str, Any]) -> Iterator[Event]:
        if data.get("outcome") in ("asked", "deferred"):
            return
        outcome: Outcome = "success" if data.get("outcome") in ("returned", "unknown") else "failed"
        content = data.get("output")
        if outcome == "failed" and content is None:
            content = f"{data['tool']} did not succeed."
        yield from self._return(data["call_id"], data["tool"], content, outcome)

    def _ask(self, task: str, data: dict[str, Any]) -> None:
        self.questions[data["call_id"]] = Question(
            task_id=data.get("task_id") or task,
            call_id=data["call_id"],
            tool=data["tool"],
            arguments=data.get("arguments") or {},
            kind="question" if data.get("kind") == "question" else "approval",
            reason=data.get("reason"),
        )

    def _decide(self, kind: str, data: dict[str, Any]) -> Iterator[Event]:
        self.questions.pop(data["call_id"], None)
        if kind == "question.answered":
            yield from self._return(data["call_id"], data["tool"], data.get("note"), "success")
        elif kind != "approval.given":
            why = data.get("note") or ("Nobody answered in time." if kind == "approval.expired" else "Denied.")
            yield from self._return(data["call_id"], data["tool"], why, "denied")

    def _return(self, call_id: str, tool: str, content: Any, outcome: Outcome) -> Iterator[Event]:
        self._pending.pop(call_id, None)
        returned = ToolReturnPart(tool, content, call_id, outcome=outcome)
        yield from self._keep(FunctionToolResultEvent(returned))

    def _close_calls(self, content: str, outcome: Outcome) -> Iterator[Event]:
        """Calls that left no record of their own: of the final result, or not valid as they stood."""
        for call in list(self._pending.values()):
            yield from self._return(call.tool_call_id, call.tool_name, content, outcome)

    def _keep(self, event: Event) -> Iterator[Event]:
        self._settled.append(event)
        yield event


def _on_record(part: ModelResponsePart) -> Said:
    match part:
        case TextPart() | ThinkingPart():
            return Said(part.part_kind, part.content, record=part)
        case ToolCallPart():
            text = part.args if isinstance(part.args, str) else part.args_as_json_str() if part.args else ""
            return Said("tool-call", text, part.tool_name, part.tool_call_id, record=part)
        case _:
            return Said(part.part_kind, "", record=part)


def _goes_on(told: Sequence[Said], parts: Sequence[Said], *, is_whole: bool) -> bool:
    """Whether these parts say what was told and perhaps more, or have not yet said all of it again."""
    for number, before in enumerate(told):
        if number >= len(parts):
            return not is_whole
        now = parts[number]
        if (now.kind, now.tool, now.call_id) != (before.kind, before.tool, before.call_id):
            return False
        is_open, is_growing = number == len(told) - 1, not is_whole and number == len(parts) - 1
        if is_growing and before.text.startswith(now.text):
            return True
        if now.text != before.text and not (is_open and now.text.startswith(before.text)) and not _same(now, before):
            return False
    return True


def _same(now: Said, before: Said) -> bool:
    """Arguments may be recorded in another notation than they were spoken in."""
    try:
        return now.kind == "tool-call" and bool(json.loads(now.text or "{}") == json.loads(before.text or "{}"))
    except ValueError:
        return False
