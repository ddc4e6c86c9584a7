"""Everything a session can be asked to do."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel

from agent import effect, pure
from agent.demo.script import Part, call, say
from agent.recorder import current
from tests.agents.traces import ran, this_task
from tests.faults import folder, note


def write_companion(prompt: str, results: list[Any]) -> list[Part]:
    match prompt.split():
        case ["gate", *_]:
            return [[call("pass")], [call("note")], say(f"{prompt}: done")][len(results)]
        case ["note", *_]:
            return say("noted") if results else [call("note")]
        case ["ask", *_]:
            return say(f"you said {results[0].content}") if results else [call("ask_user", question="Which colour?")]
        case ["hand", *_]:
            return say(f"back: {results[0].content}") if results else [call("hand_over", reason="too hard")]
        case ["risk", *_]:
            return say(str(results[0].content)) if results else [call("risk", amount=1000)]
        case ["peek", *_]:
            return say(f"{prompt}: done") if results else [call("peek", n=n) for n in range(3)]
        case ["plan", *what]:
            steps = [{"title": "x", "status": "active"}]
            return say("planned") if results else [call("update_plan", goal=f"goal {' '.join(what)}", steps=steps)]
        case ["slow", *_]:
            return say(f"{prompt}: at last")
        case _:
            return say(f"heard {prompt}")


async def respond_as_companion(messages: list[Any], info: Any) -> Any:
    """Words that come with a tool's result, or with other words, steer; they do not begin anything."""

    sent = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    note("sent", {"task": this_task(), "messages": sent})
    prompt, results = "", list[Any]()
    for message in messages:
        returns = [part for part in message.parts if isinstance(part, ToolReturnPart)]
        said = [str(part.content) for part in message.parts if isinstance(part, UserPromptPart)]
        prompts = [text for text in said if not text.startswith("What follows was ")]
        results += returns
        if prompts and not returns:
            prompt, results = prompts[0], []
    if (folder() / "die").exists() and "mind the step" in json.dumps(sent):
        (folder() / "die").unlink()
        os.kill(os.getpid(), 9)
    while prompt.startswith("slow") and not (folder() / "open").exists():
        await asyncio.sleep(0.02)
    return ModelResponse(parts=list(write_companion(prompt, results)))


companion = Agent(FunctionModel(respond_as_companion, model_name="companion"), name="companion")


@companion.tool_plain(name="pass")
@effect(in_doubt="retry")
async def pass_now() -> str:
    ran("gate")
    while not (folder() / "open").exists():
        await asyncio.sleep(0.02)
    return "open"


@companion.tool_plain(name="note")
@effect(in_doubt="retry")
async def note_it() -> str:
    ran("note")
    return "noted"


@companion.tool_plain(sequential=True)
@pure
async def peek(n: int) -> str:
    """The first waits at the gate, and says when it hears that something is asked of its task."""
    ran(f"peek {n}")
    execution, has_heard = current.get(), False
    while n == 0 and not (folder() / "open").exists():
        if execution is not None and execution.is_called and not has_heard:
            has_heard = True
            note("heard", {"task": this_task()})
        await asyncio.sleep(0.02)
    return "seen"


@companion.tool_plain(requires_approval=True)
async def risk(amount: int) -> str:
    ran(f"risk {amount}")
    return f"risked {amount}"
