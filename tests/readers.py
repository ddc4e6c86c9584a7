"""An agent that reads many long pages, so that old results must make room for new ones."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models.function import FunctionModel

from agent import pure
from agent.demo.script import call, say
from tests.agents.traces import measured
from tests.faults import note

PAGES = 40


def respond(messages: list[ModelMessage], info: Any) -> ModelResponse:
    sent = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    note("sent", {"messages": sent, "tokens": measured(sent)})
    calls = [part for message in messages for part in message.parts if part.part_kind == "tool-call"]
    read = 1 + max((part.args_as_dict()["number"] for part in calls), default=-1)
    return ModelResponse(parts=[call("read_page", number=read)] if read < PAGES else say(f"read {read} pages"))


reader = Agent(FunctionModel(respond, model_name="reading"), name="reader")


@reader.tool_plain
@pure
async def read_page(number: int) -> str:
    return f"page {number}: " + "letters " * 100
