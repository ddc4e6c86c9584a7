"""An agent whose model says what each answer used, at a price that is known or not."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage

from agent import effect
from agent.demo.script import call, read_turn, say
from tests.agents.traces import ran
from tests.faults import folder

INPUT, OUTPUT, CACHED = 1000, 100, 400


def respond(messages: list[Any], info: Any) -> ModelResponse:
    turn = read_turn(messages)
    used = RequestUsage(input_tokens=INPUT, output_tokens=OUTPUT, cache_read_tokens=CACHED)
    ran("model", prompt=turn.prompt)
    told = str(messages[0].parts)
    if "context summarization assistant" in told or "An interruption ends this context" in str(info.instructions):
        return ModelResponse(parts=say("In short: numbers."), usage=used, provider_name="openai")
    wanted = int(turn.prompt.split()[-1]) if turn.prompt.startswith("work") else 0
    if len(turn.results) < wanted:
        return ModelResponse(parts=[call("toil", n=len(turn.results))], usage=used, provider_name="openai")
    return ModelResponse(parts=say(f"{turn.prompt}: done"), usage=used, provider_name="openai")


spender = Agent(FunctionModel(respond, model_name="gpt-4o"), name="spender")
stranger = Agent(FunctionModel(respond, model_name="nobody-knows-1"), name="stranger")


def refuse(messages: list[Any], info: Any) -> ModelResponse:
    raise ValueError(f"cannot answer {read_turn(messages).prompt!r}")


failing = Agent(FunctionModel(refuse), name="failing")


@spender.tool_plain
@effect(in_doubt="retry")
async def toil(n: int) -> str:
    ran("toil", n=n)
    while (folder() / "shut").exists():
        await asyncio.sleep(0.02)
    return f"toiled {n}"
