"""The output of a response as OpenAI's Responses API has it, built from what is told, with an event for each change.

Sequence numbers count characters of text and single events alike, so that they do not depend on how a text happened
to be cut into pieces: `starting_after` means the same place on every telling.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic_ai.messages import (
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)

from agent.protocols.account import Told
from agent.protocols.retelling import Question, TakenBack

Wire = dict[str, Any]


class Output:
    def __init__(self, task: str, agent: str, after: int | None = None) -> None:
        self.items: list[Wire] = []
        self._task = task
        self._agent = agent
        self._after = -1 if after is None else after
        self._number = -1
        self._index = -1
        self._calls: dict[str, tuple[int, Wire]] = {}
        self._known = 0
        self._kept = 0

    def hear(self, event: Told) -> Iterator[Wire]:
        """What a client was told of items on record stays; items of an answer that is taken back are in no response."""
        if self._known:
            self._known -= 1
            self._kept += isinstance(event, PartEndEvent) and isinstance(event.part, TextPart | ToolCallPart)
            if not self._known:
                self._forget()
            return
        match event:
            case TakenBack(settled=known):
                self._known, self._kept = known, 0
                if not known:
                    self._forget()
            case PartStartEvent(part=TextPart(content=text)):
                yield from self._begin_text()
                yield from self._add_text(text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                yield from self._add_text(text)
            case PartEndEvent(part=TextPart(content=text)):
                yield from self._end_text(text)
            case PartEndEvent(part=ToolCallPart() as call):
                yield from self._call(call)
            case FunctionToolResultEvent(part=part):
                yield from self._return(part.tool_call_id, part.content, part.outcome == "success")
            case _:
                pass

    def _forget(self) -> None:
        self.items = self.items[: self._kept]
        kept = [item["id"] for item in self.items]
        self._calls = {call: known for call, known in self._calls.items() if known[1]["id"] in kept}

    def say(self, text: str) -> Iterator[Wire]:
        """Words of ours."""
        yield from self.hear(PartStartEvent(index=0, part=TextPart(text)))
        yield from self.hear(PartEndEvent(index=0, part=TextPart(text)))

    def ask(self, question: Question) -> Iterator[Wire]:
        if question.kind == "question":
            asked = question.arguments.get("question") or question.arguments.get("reason") or question.tool
            yield from self.say(
                f"{asked}\n\n(The agent waits for the answer: POST /v1/tasks/{question.task_id}/answer with"
                f" call_id {question.call_id!r} and text.)"
            )
            return
        self._calls.pop(question.call_id, None)
        self.items = [item for item in self.items if item["id"] != f"mcp_{question.call_id}"]
        item: Wire = {
            "type": "mcp_approval_request",
            "id": question.call_id,
            "name": question.tool,
            "arguments": json.dumps(question.arguments),
            "server_label": self._agent,
        }
        self._add(item)
        yield from self.event("output_item.added", output_index=self._index, item=item)
        yield from self.event("output_item.done", output_index=self._index, item=item)

    def event(self, kind: str, **facts: Any) -> Iterator[Wire]:
        self._number += 1
        if self._number > self._after:
            yield {"type": f"response.{kind}", "sequence_number": self._number, **facts}

    def _add(self, item: Wire) -> None:
        self._index += 1
        self.items.append(item)

    def _begin_text(self) -> Iterator[Wire]:
        item: Wire = {
            "type": "message",
            "id": f"msg_{self._task}_{self._index + 1}",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        self._add(item)
        yield from self.event("output_item.added", output_index=self._index, item=dict(item))
        item["content"] = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
        yield from self.event("content_part.added", **self._place(), part=dict(item["content"][0]))

    def _add_text(self, text: str) -> Iterator[Wire]:
        if not text:
            return
        self.items[-1]["content"][0]["text"] += text
        self._number += len(text)
        if self._number > self._after:
            unseen = text[-(self._number - self._after) :]
            yield {
                "type": "response.output_text.delta", "sequence_number": self._number, **self._place(),
                "delta": unseen, "logprobs": [],
            }  # fmt: skip

    def _end_text(self, text: str) -> Iterator[Wire]:
        item = self.items[-1]
        item["status"] = "completed"
        yield from self.event("output_text.done", **self._place(), text=text, logprobs=[])
        yield from self.event("content_part.done", **self._place(), part=dict(item["content"][0]))
        yield from self.event("output_item.done", output_index=self._index, item=item)

    def _call(self, call: ToolCallPart) -> Iterator[Wire]:
        """A call that is made here, not by the client: as OpenAI shows those of MCP servers."""
        item: Wire = {
            "type": "mcp_call",
            "id": f"mcp_{call.tool_call_id}",
            "name": call.tool_name,
            "arguments": call.args_as_json_str(),
            "server_label": self._agent,
            "status": "in_progress",
            "output": None,
            "error": None,
        }
        self._add(item)
        self._calls[call.tool_call_id] = (self._index, item)
        yield from self.event("output_item.added", output_index=self._index, item=dict(item))
        yield from self.event(
            "mcp_call_arguments.done", output_index=self._index, item_id=item["id"], arguments=item["arguments"]
        )

    def _return(self, call_id: str, content: Any, is_good: bool) -> Iterator[Wire]:
        if call_id not in self._calls:
            return
        index, item = self._calls.pop(call_id)
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
        item["status"] = "completed" if is_good else "failed"
        if is_good:
            item["output"] = text
        else:
            item["error"] = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
        yield from self.event(f"mcp_call.{item['status']}", output_index=index, item_id=item["id"])
        yield from self.event("output_item.done", output_index=index, item=item)

    def _place(self) -> Wire:
        return {"item_id": self.items[-1]["id"], "output_index": self._index, "content_index": 0}
