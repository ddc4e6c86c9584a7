"""The archivist of a later release: other instructions, one more step and tool, and a tool that changed."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel

from agent import idempotency_key, pure, workspace
from agent.recorder import record
from tests.faults import note
from tests.filing import respond_as_archivist


class Opening(AbstractCapability[Any]):
    """A step that no earlier release recorded, before everything else."""

    async def before_run(self, ctx: Any) -> None:
        async def step() -> str:
            return "open"

        await record("archive.open", step)


def respond_later(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    note("later", {"instructions": info.instructions, "tools": sorted(tool.name for tool in info.function_tools)})
    return respond_as_archivist(messages, info)


archivist = Agent(
    FunctionModel(respond_later, model_name="archivist-2"),
    name="archivist",
    instructions="You keep the archive, and you keep it dry.",
    toolsets=[workspace()],
    capabilities=[Opening()],
)


@archivist.tool_plain
@pure
def dampness() -> int:
    return 0


@archivist.tool_plain(requires_approval=True)
async def burn(thoroughly: bool = True) -> str:
    note("world", {"effect": "burn", "key": idempotency_key(), "thoroughly": thoroughly})
    return "burned"
