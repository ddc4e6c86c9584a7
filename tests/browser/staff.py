"""Agents for the console's tests: a support desk that asks before it pays, and one whose tool has a hostile name."""

from __future__ import annotations

import asyncio
import os

from pydantic_ai import Agent

from agent import effect, pure, workspace
from agent.demo.script import Part, Turn, call, say, scripted

HOSTILE = "<img src=x onerror=alert(1)>"


def write_support(turn: Turn) -> list[Part]:
    if "refund" not in turn.prompt.lower():
        return say(f"Happy to help. You said: {turn.prompt}")
    if not turn.of("look_up"):
        return [
            call(
                "update_plan",
                goal="Refund order 17 for Ana",
                steps=[
                    {"title": "look up the order", "status": "done"},
                    {"title": "refund it once", "status": "active"},
                    {"title": "tell Ana", "status": "pending"},
                ],
            ),
            call("look_up", order="17"),
        ]
    if not turn.of("refund"):
        return [call("refund", order="17", cents=4900)]
    return say(f"Done: {turn.of('refund')[0].content}. Ana will see it within two days.")


support = Agent(
    scripted(write_support, lambda: 0.02),
    name="support",
    description="Answers customers, and asks before it pays.",
    instructions="Help the customer. Refund only what was paid, and never twice.",
)


@support.tool_plain
@pure
async def look_up(order: str) -> str:
    await asyncio.sleep(float(os.environ.get("TEST_TICK", "0")))
    return f"order {order}: one lamp, 49.00 EUR, delivered on 11 November, paid by card"


@support.tool_plain(requires_approval=True)
@effect(in_doubt="ask")
async def refund(order: str, cents: int) -> str:
    return f"{cents / 100:.2f} EUR refunded for order {order}"


def write_hostile(turn: Turn) -> list[Part]:
    if not turn.results:
        return [call(HOSTILE, what=HOSTILE), call("write_file", path=f"notes/{HOSTILE}.md", content=HOSTILE)]
    return say(f"<script>alert('answer')</script> {HOSTILE}")


hostile = Agent(scripted(write_hostile, lambda: 0.0), name="hostile", toolsets=[workspace()])


@hostile.tool_plain(name=HOSTILE)
@pure
def look(what: str) -> str:
    return f"<b>{what}</b>"
