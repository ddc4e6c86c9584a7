"""One agent in several releases; TEST_RELEASE says which. It leaves word of what it does, as those of tests.agents."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models.function import FunctionModel

from agent import idempotency_key, pure
from agent.demo.script import Part, call, read_turn, say
from agent.recorder import record
from tests.agents.traces import ran, this_task
from tests.faults import folder, note

RELEASE = os.environ.get("TEST_RELEASE", "first")


def respond(messages: list[Any], info: Any) -> ModelResponse:
    sent = json.dumps(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))
    turn = read_turn(messages)
    note("sent", {"task": this_task(), "prompt": turn.prompt, "messages": sent})
    was_handed_over = "handoff of the context before" in sent
    if turn.prompt.startswith("sign"):
        return ModelResponse(parts=list(sign_all([str(part.content) for part in turn.results], was_handed_over)))
    return ModelResponse(parts=list(answer(turn.prompt, len(turn.results), was_handed_over)))


def sign_all(results: list[str], was_handed_over: bool) -> list[Part]:
    pen = call("ask_user", question="Which pen?")
    match len(results):
        case 0 if not was_handed_over:
            return [*(call("sign", what=what) for what in "abcd"), pen]
        case 0:
            return [call("sign", what="c"), call("sign", what="d"), pen]
        case 3:
            return [call("deliver")]
        case 4:
            return [call("sign", what="b"), call("sign", what="c")]
        case _:
            return say(" | ".join(results))


def answer(prompt: str, results: int, was_handed_over: bool) -> list[Part]:
    match prompt.split()[0], results:
        case "work" | "abreast" | "erase", _ if was_handed_over:
            return say(f"{prompt}: left as it is")
        case "work", 0:
            return [call("book")]
        case "work", 1:
            return [call("deliver")]
        case "erase", 0:
            return [call("erase")]
        case "erase", 1:
            return [call("deliver")]
        case "abreast", 0:
            return [call("look", what="a"), call("deliver"), call("look", what="b")]
        case _:
            return say(f"{prompt}: done, {results} results")


async def extra_step() -> str:
    ran("extra step")
    return "done"


class ChangedHook(AbstractCapability[Any]):
    """What releases differ in before a task's first step and its first request."""

    async def before_run(self, ctx: Any) -> None:
        if RELEASE == "begins with a step":
            await record("extra.step", extra_step)

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        if RELEASE == "inserts a step" and ctx.run_step == 1:
            await record("extra.step", extra_step)
        if RELEASE == "fails":
            raise ValueError("nothing works today")
        return request_context


clerk = Agent(FunctionModel(respond, model_name="clerk"), name="clerk", capabilities=[ChangedHook()])


async def book() -> str:
    ran("book")
    return "booked"


if RELEASE != "drops a tool":
    clerk.tool_plain(book)


@clerk.tool_plain(requires_approval=True)
async def erase() -> str:
    ran("erase")
    return "erased"


@clerk.tool_plain(requires_approval=True, sequential=True)
async def sign(what: str) -> str:
    ran(f"sign {what}", key=idempotency_key())
    while what == "b" and not (folder() / "open").exists():
        await asyncio.sleep(0.02)
    return f"signed {what}"


@clerk.tool_plain
@pure
async def look(what: str) -> str:
    ran("look")
    return what


@clerk.tool_plain
async def deliver() -> str:
    """Unmarked: an effect whose doubts are reported."""
    ran("deliver")
    while not (folder() / "open").exists():
        await asyncio.sleep(0.02)
    return "delivered"
