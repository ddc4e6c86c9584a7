"""A scripted model: a function of the conversation so far, so that it goes on rightly after any restart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from pydantic_ai.models.function import AgentInfo, FunctionModel

Part = TextPart | ToolCallPart

BRIEFING = "The work stopped between two steps. Nothing has to be done again: go on with the next step of the plan."


@dataclass(frozen=True)
class Turn:
    """What has been said and done since the user's last message."""

    prompt: str
    earlier: int
    results: Sequence[ToolReturnPart]

    def of(self, tool: str) -> list[ToolReturnPart]:
        return [part for part in self.results if part.tool_name == tool]


def scripted(write: Callable[[Turn], Sequence[Part]]) -> FunctionModel:
    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if (info.instructions or "").startswith("An interruption ends this context"):
            return ModelResponse(parts=[TextPart(BRIEFING)])
        return ModelResponse(parts=list(write(read_turn(messages))))

    return FunctionModel(respond, model_name="scripted")


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
