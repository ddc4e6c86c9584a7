"""Steps that take a while: to be interrupted, or to go on only when the test says so."""

from __future__ import annotations

import asyncio
import os

from pydantic_ai import Agent

from agent import effect, idempotency_key
from agent.demo.script import Part, Turn, call, say, scripted
from tests.agents.traces import ran
from tests.faults import folder

# --- steady: a few steps that take a while, to be interrupted ----------------------------------------------------


def write_steady(turn: Turn) -> list[Part]:
    ran("model", prompt=turn.prompt)
    wanted = int(os.environ.get("TEST_STEPS", "5"))
    if len(turn.results) < wanted:
        return [call("tick", n=len(turn.results))]
    return say(f"{turn.prompt}: {wanted} ticks")


steady = Agent(scripted(write_steady), name="steady")


@steady.tool_plain
@effect(in_doubt="retry")
async def tick(n: int) -> int:
    ran("tick", n=n, key=idempotency_key())
    await asyncio.sleep(float(os.environ.get("TEST_TICK", "0.1")))
    return n


# --- gate: a tool that goes on only when the test says so --------------------------------------------------------


def write_gate(turn: Turn) -> list[Part]:
    if not turn.of("pass_gate"):
        return [call("pass_gate")]
    return say("passed")


gate = Agent(scripted(write_gate), name="gate")


@gate.tool_plain
@effect(in_doubt="retry")
async def pass_gate() -> str:
    ran("gate", key=idempotency_key())
    while not (folder() / "open").exists():
        await asyncio.sleep(0.02)
    return "open"
