"""The tools with which an agent turns to a person. Their answer is a person's, whenever it comes."""

from __future__ import annotations

from typing import Any

from pydantic_ai import FunctionToolset
from pydantic_ai.exceptions import CallDeferred

from agent.tools import pure

NAMES = ("ask_user", "hand_over")


def people() -> FunctionToolset[Any]:
    tools: FunctionToolset[Any] = FunctionToolset(id="perdure-people")

    @tools.tool_plain
    @pure
    async def ask_user(question: str) -> str:
        """Ask the user something you cannot find out yourself, and wait for the answer, however long it takes."""
        raise CallDeferred()

    @tools.tool_plain
    @pure
    async def hand_over(reason: str) -> str:
        """Hand this session to a person who takes over from you. You get it back with a note of what was done."""
        raise CallDeferred()

    return tools
