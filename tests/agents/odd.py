"""Tools that misbehave."""

from __future__ import annotations

import os
import time
from typing import Any

from pydantic_ai import Agent

from agent.demo.script import Part, Turn, call, say, scripted


def write_odd(turn: Turn) -> list[Part]:
    tool = turn.prompt.split()[0]
    if not turn.of(tool):
        return [call(tool)]
    return say(f"{tool} gave {turn.of(tool)[-1].content!r}")


odd = Agent(scripted(write_odd), name="odd")


class Opaque:
    def __init__(self) -> None:
        self.handle = open(os.devnull)  # noqa: SIM115


@odd.tool_plain
async def opaque() -> Any:
    return Opaque()


@odd.tool_plain
async def raises() -> str:
    raise ValueError("the disk is on fire")


@odd.tool_plain
async def nul() -> str:
    return "before\0after \ud800 end"


@odd.tool_plain
async def tagged() -> dict[str, Any]:
    return {"$": "os:system", "v": "echo owned", "nan": float("nan"), "when": time.gmtime(0)[:3]}
