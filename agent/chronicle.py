"""What a task has said and done, told from its records alone, for a history whose code can no longer replay them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolReturnPart

from agent.serializer import JsonSerializer, unpack
from steps.tool import ToolRecord
from store.types import StepRecord


def retell(records: Sequence[StepRecord]) -> list[ModelMessage]:
    """Each response, and each result after the response that asked for it. What cannot be read is left out."""
    messages: list[ModelMessage] = []
    for record in records:
        try:
            told = JsonSerializer().deserialize(record.output) if record.output else None
            result = _result(told) if record.name.startswith("tool.") else None
        except Exception:  # noqa: S112
            continue
        if isinstance(told, ModelResponse):
            messages.append(told)
        if result is None:
            continue
        if messages and isinstance(messages[-1], ModelRequest):
            messages[-1] = ModelRequest(parts=[*messages[-1].parts, result])
        else:
            messages.append(ModelRequest(parts=[result]))
    return messages


def _result(told: Any) -> ToolReturnPart | None:
    record = ToolRecord.model_validate(told)
    match record.outcome:
        case "returned" | "unknown":
            content = unpack(record.output)
        case "retry" | "failed" | "raised":
            content = f"{record.outcome}: {record.note}"
        case "asked" | "deferred":
            return None
    return ToolReturnPart(tool_name=record.tool, content=content, tool_call_id=record.call_id)
