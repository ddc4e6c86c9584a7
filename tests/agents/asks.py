"""An effect whose doubts a person decides, and a tool that always needs approval."""

from __future__ import annotations

import os

from pydantic_ai import Agent

from agent import effect, idempotency_key
from agent.demo.script import Part, Turn, call, say, scripted
from tests.agents.traces import ran
from tests.faults import folder, note


def write_asks(turn: Turn) -> list[Part]:
    if turn.prompt.startswith("hello"):
        return say(f"hello to you too, message {turn.earlier + 1}")
    tool = "wire" if turn.prompt.startswith("wire") else "erase"
    if not turn.of(tool):
        return [call(tool, what=turn.prompt)]
    return say(f"{tool}: {turn.of(tool)[-1].content}")


asks = Agent(scripted(write_asks), name="asks")


@asks.tool_plain
@effect(in_doubt="ask")
async def wire(what: str) -> str:
    ran("wire", key=idempotency_key())
    if (folder() / "die").exists():
        (folder() / "die").unlink()
        os.kill(os.getpid(), 9)
    note("world", {"effect": "wire", "key": idempotency_key()})
    return "wired"


@asks.tool_plain(requires_approval=True)
async def erase(what: str) -> str:
    ran("erase", key=idempotency_key())
    note("world", {"effect": "erase", "key": idempotency_key()})
    return "erased"
