"""One model request, for many turns."""

from __future__ import annotations

from pydantic_ai import Agent

from agent.demo.script import Part, Turn, say, scripted


def write_echo(turn: Turn) -> list[Part]:
    return say(f"turn {turn.earlier + 1}: {turn.prompt}")


echo = Agent(scripted(write_echo), name="echo")
