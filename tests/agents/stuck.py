"""Tools that never come back, each in its own way."""

from __future__ import annotations

import asyncio
import re
import time

from pydantic_ai import Agent

from agent import beat, effect, idempotency_key, pure
from agent.demo.script import Part, Turn, call, say, scripted
from tests.agents.traces import ran

# --- stuck: tools that never come back, each in its own way ------------------------------------------------------


def write_stuck(turn: Turn) -> list[Part]:
    tool = turn.prompt.split()[0]
    if tool not in ("sleeps", "awaits", "clogs", "lends", "beats", "grips"):
        return say(f"answered: {turn.prompt}")
    return say(f"{tool}: {turn.of(tool)[0].content}") if turn.of(tool) else [call(tool)]


stuck = Agent(scripted(write_stuck), name="stuck")


@stuck.tool_plain
@effect(in_doubt="retry")
def sleeps() -> str:
    """Blocks a thread."""
    ran("sleeps")
    time.sleep(3600)
    return "woke up"


@stuck.tool_plain
@effect(in_doubt="retry")
async def awaits() -> str:
    """Never done, but can be cancelled."""
    ran("awaits")
    await asyncio.Event().wait()
    return "woke up"


@stuck.tool_plain
@effect(in_doubt="retry")
async def clogs() -> str:
    """Blocks the event loop."""
    ran("clogs")
    time.sleep(3600)
    return "woke up"


@stuck.tool_plain
@effect(in_doubt="retry")
async def lends() -> str:
    """Blocks a thread that is not a tool's."""
    ran("lends")
    await asyncio.to_thread(time.sleep, 3600)
    return "woke up"


@stuck.tool_plain
@effect(in_doubt="retry")
def grips() -> str:
    """Never lets go of the interpreter's lock: no other thread of the process runs."""
    ran("grips")
    return str(re.match(r"(a+)+$", "a" * 64 + "b"))


@stuck.tool_plain
@pure
async def beats() -> str:
    """Slow, and says that it is alive."""
    for _ in range(30):
        await asyncio.sleep(0.1)
        beat()
    return "finished"


# --- halts: an unmarked tool that never comes back ---------------------------------------------------------------


def write_halts(turn: Turn) -> list[Part]:
    return say(str(turn.of("halt")[0].content)) if turn.of("halt") else [call("halt")]


halts = Agent(scripted(write_halts), name="halts")


@halts.tool_plain
async def halt() -> str:
    ran("halt", key=idempotency_key())
    await asyncio.sleep(3600)
    return "woke up"


# --- busy: an async tool that blocks the event loop --------------------------------------------------------------


def write_busy(turn: Turn) -> list[Part]:
    return say("paid") if turn.of("blocks") else [call("blocks")]


busy = Agent(scripted(write_busy), name="busy")


@busy.tool_plain
async def blocks() -> str:
    ran("blocks", key=idempotency_key())
    time.sleep(4)
    return "ok"
