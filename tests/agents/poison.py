"""Tools that take their worker down, beside one that does its work."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time

from pydantic_ai import Agent

from agent import effect, idempotency_key, pure
from agent.demo.script import Part, Turn, call, say, scripted
from tests.agents.traces import happened, ran, this_task
from tests.faults import folder, note


def write_poison(turn: Turn) -> list[Part]:
    tool = turn.prompt.split()[0]
    if tool not in ("leave", "devour", "segfault", "peek", "work"):
        return say(f"answered: {turn.prompt}")
    wanted = int(os.environ.get("TEST_STEPS", "3")) if tool == "work" else 1
    if len(turn.results) < wanted:
        return [call(tool, n=len(turn.results))]
    return say(f"{turn.prompt}: done")


poison = Agent(scripted(write_poison), name="poison")


def was_done(n: int) -> str | None:
    return "done" if happened(idempotency_key()) else None


@poison.tool_plain
@effect(in_doubt="verify", verify=was_done)
async def work(n: int) -> str:
    ran("work", n=n)
    await asyncio.sleep(float(os.environ.get("TEST_TICK", "0.3")))
    note("world", {"effect": "work", "key": idempotency_key()})
    return "done"


@poison.tool_plain
@effect(in_doubt="retry")
async def leave(n: int) -> str:
    ran("leave", key=idempotency_key())
    await asyncio.sleep(0.2)
    if not (folder() / "healed").exists():
        note("deaths", {"task": this_task(), "pid": os.getpid()})
        os._exit(int(os.environ.get("TEST_EXIT", "3")))
    return "stayed"


@poison.tool_plain
@pure
async def peek(n: int) -> str:
    """Only reads, and dies of it."""
    os._exit(3)


@poison.tool_plain
@effect(in_doubt="retry")
async def segfault(n: int) -> str:
    await asyncio.sleep(0.2)
    note("deaths", {"task": this_task(), "pid": os.getpid()})
    ctypes.string_at(0)
    return "survived"


@poison.tool_plain
@effect(in_doubt="retry")
def devour(n: int) -> str:
    """Takes memory until somebody ends it."""
    note("deaths", {"task": this_task(), "pid": os.getpid()})
    taken: list[bytearray] = []
    for _ in range(400):
        taken.append(bytearray(b"x") * 10_000_000)
        time.sleep(0.02)
    return "had enough"
