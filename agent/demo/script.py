"""A scripted model: a function of the conversation so far, so that it goes on rightly after any restart."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import (
    AgentInfo,
    BuiltinToolCallsReturns,
    DeltaThinkingCalls,
    DeltaToolCall,
    DeltaToolCalls,
    FunctionModel,
)

Part = TextPart | ToolCallPart
Streamed = str | DeltaToolCalls | DeltaThinkingCalls | BuiltinToolCallsReturns

BRIEFING = "The work stopped between two steps. Nothing has to be done again: go on with the next step of the plan."


@dataclass(frozen=True)
class Turn:
    """What has been said and done since the user's last message."""

    prompt: str
    earlier: int
    results: Sequence[ToolReturnPart]

    def of(self, tool: str) -> list[ToolReturnPart]:
        return [part for part in self.results if part.tool_name == tool]


def scripted(
    write: Callable[[Turn], Sequence[Part]], seconds_a_word: Callable[[], float] | None = None
) -> FunctionModel:
    """A model that answers as written; at a pace, word by word as a model that streams."""

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Streamed]:
        assert seconds_a_word is not None
        for index, part in enumerate(respond(messages, info).parts):
            match part:
                case ToolCallPart():
                    yield {
                        index: DeltaToolCall(
                            name=part.tool_name, json_args=part.args_as_json_str(), tool_call_id=part.tool_call_id
                        )
                    }
                case TextPart(content=text):
                    for word in re.split(r"(?<=\s)", text):
                        yield word
                        await asyncio.sleep(seconds_a_word())
                case _:
                    pass

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if (info.instructions or "").startswith("An interruption ends this context"):
            return ModelResponse(parts=[TextPart(BRIEFING)])
        return ModelResponse(parts=list(write(read_turn(messages))))

    if seconds_a_word is None:
        return FunctionModel(respond, model_name="scripted")
    return FunctionModel(respond, stream_function=stream, model_name="scripted")


def read_turn(messages: Sequence[ModelMessage]) -> Turn:
    prompt, earlier, results = "", 0, list[ToolReturnPart]()
    for message in messages:
        if not isinstance(message, ModelRequest):
            continue
        for part in message.parts:
            match part:
                case UserPromptPart() if not str(part.content).startswith("What follows was "):
                    earlier += bool(prompt)
                    prompt, results = str(part.content), []
                case ToolReturnPart():
                    results.append(part)
                case _:
                    pass
    return Turn(prompt, earlier, results)


def say(text: str) -> list[Part]:
    return [TextPart(text)]


def call(tool: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool, arguments)
