"""Agents for clients of protocols: their models stream a word each time the test lets them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from agent import pure
from tests.faults import folder, note


def answered(messages: list[ModelMessage], tool: str) -> bool:
    """Whether the newest input already has this tool's result."""
    for message in reversed(messages):
        for part in message.parts:
            if part.part_kind == "tool-return" and part.tool_name == tool:
                return True
            if part.part_kind == "user-prompt":
                return False
    return False


async def speak(kind: str) -> AsyncIterator[str]:
    note("spoke", {})
    for number in range(1, 10):
        while int((folder() / "words").read_text() or 0) < number:
            await asyncio.sleep(0.01)
        yield f"{kind}{number} "


async def guide_talks(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """One look, then words 1 to 9; the file `words` holds how many may be said, the file `kind` which ones."""
    if not answered(messages, "look_up"):
        yield {0: DeltaToolCall(name="look_up", json_args='{"order":', tool_call_id="call-look")}
        yield {0: DeltaToolCall(json_args=' "17"}')}
        return
    kind = folder() / "kind"
    async for word in speak(kind.read_text() if kind.exists() else "word"):
        yield word


guide = Agent(FunctionModel(stream_function=guide_talks, model_name="guiding"), name="guide")


@guide.tool_plain
@pure
async def look_up(order: str) -> str:
    note("looked", {"order": order})
    return f"order {order} is on its way"


async def guard_talks(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    if not answered(messages, "open_gate"):
        yield {0: DeltaToolCall(name="open_gate", json_args='{"gate": 4}', tool_call_id="call-gate")}
        return
    result = [part for message in messages for part in message.parts if part.part_kind == "tool-return"][-1]
    yield f"done: {result.content}"


guard = Agent(FunctionModel(stream_function=guard_talks, model_name="guarding"), name="guard")


@guard.tool_plain(requires_approval=True)
async def open_gate(gate: int) -> str:
    note("opened", {"gate": gate})
    return f"gate {gate} is open"
