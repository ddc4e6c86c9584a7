"""An agent whose model streams one word each time the test lets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCalls, FunctionModel

from tests.faults import folder, note


async def talk(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Words 1 to 9; the file `words` holds how many may be said."""
    note("asked", {})
    for number in range(1, 10):
        while int((folder() / "words").read_text() or 0) < number:
            await asyncio.sleep(0.01)
        yield f"word{number} "


async def chat(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Forty words in about a second."""
    for number in range(40):
        yield f"word{number} "
        await asyncio.sleep(0.025)


chatter = Agent(FunctionModel(stream_function=chat, model_name="chatting"), name="chatter")

talker = Agent(FunctionModel(stream_function=talk, model_name="talking"), name="talker")
