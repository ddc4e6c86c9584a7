"""Agents of every shape that Pydantic AI allows."""

from __future__ import annotations

import os
from typing import Any

from pydantic_ai import Agent, FunctionToolset

from agent import idempotency_key
from agent.demo.script import Part, Turn, call, say, scripted
from tests.agents.traces import ran
from tests.faults import folder


def write_plain(turn: Turn) -> list[Part]:
    return say(f"heard {turn.prompt}")


validated = Agent(scripted(write_plain), name="validated")


@validated.output_validator
def must_be_heard(output: str) -> str:
    assert isinstance(output, str)
    return f"{output}, validated"


def write_call_output(turn: Turn) -> list[Part]:
    return [call("final_result", to="ana")]


def send_mail(to: str) -> str:
    """Send the mail that ends the run."""
    ran("mail", key=idempotency_key())
    if (folder() / "die").exists():
        (folder() / "die").unlink()
        os.kill(os.getpid(), 9)
    return f"mailed {to}"


mailer = Agent(scripted(write_call_output), name="mailer", output_type=send_mail)

faulty = Agent(scripted(write_plain), name="faulty")


@faulty.instructions
def fails_to_look_up() -> str:
    import sqlalchemy.exc

    raise sqlalchemy.exc.NoResultFound("no such customer")


def write_dynamic(turn: Turn) -> list[Part]:
    return say(f"got {turn.of('given')[0].content}") if turn.of("given") else [call("given")]


dynamic = Agent(scripted(write_dynamic), name="dynamic")


@dynamic.toolset(id="made-at-run-time")
def made_at_run_time(ctx: Any) -> FunctionToolset[Any]:
    toolset: FunctionToolset[Any] = FunctionToolset()

    @toolset.tool_plain
    def given() -> str:
        return "something"

    return toolset
