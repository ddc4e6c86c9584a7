"""The tools with which an agent keeps its checkpoint, and looks up its own earlier words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_ai import FunctionToolset

from agent.recorder import Execution, current, fenced
from agent.tools import pure
from store import continuity
from store.database import Database
from store.documents import Checkpoint, PlanStep, shrunk, with_added, with_decision, with_plan

NAMES = ("update_plan", "record_decision", "record_discovery", "record_constraint", "search_history")


def notebook(database: Database) -> FunctionToolset[Any]:
    """Each tool is one step, and repeating it changes nothing."""
    tools: FunctionToolset[Any] = FunctionToolset(id="perdure-notebook")

    async def change(amend: Callable[[Checkpoint], Checkpoint]) -> None:
        execution = current.get()
        assert execution is not None, "the notebook is offered only to tasks"
        await amend_checkpoint(database, execution, amend)

    @tools.tool_plain
    @pure
    async def update_plan(steps: list[PlanStep], goal: str | None = None) -> str:
        """Keep the plan of the work: all its steps in order, each pending, active, done or failed, with its result."""
        await change(lambda known: with_plan(known, goal, steps))
        return "kept"

    @tools.tool_plain
    @pure
    async def record_decision(decision: str, reason: str) -> str:
        """Keep a decision and why it was made, so that it is not made again differently."""
        await change(lambda known: with_decision(known, decision, reason))
        return "kept"

    @tools.tool_plain
    @pure
    async def record_discovery(fact: str, is_external_dependency: bool = False) -> str:
        """Keep a fact that was found out, or something outside on which the work depends."""
        kind = "dependencies" if is_external_dependency else "discoveries"
        await change(lambda known: known.model_copy(update={kind: with_added(getattr(known, kind), fact)}))
        return "kept"

    @tools.tool_plain
    @pure
    async def record_constraint(constraint: str) -> str:
        """Keep a constraint, in the user's own words. It is shown to you in every later context."""
        await change(lambda known: known.model_copy(update={"constraints": with_added(known.constraints, constraint)}))
        return "kept"

    @tools.tool_plain
    @pure
    async def search_history(words: str) -> list[str]:
        """Find earlier messages of this session by words they contain, also those no longer shown to you."""
        execution = current.get()
        assert execution is not None, "the notebook is offered only to tasks"
        found = await database.run(continuity.search_messages(execution.task.session_id, words))
        return [f"message {row.position}: {shown(row.message)}" for row in found]

    return tools


async def amend_checkpoint(database: Database, execution: Execution, amend: Callable[[Checkpoint], Checkpoint]) -> None:
    """Safe to repeat: entries are kept once, and a plan replaces the plan before it."""
    task = execution.task
    async with execution.writing:
        restored = await database.run(continuity.read_restored(task.session_id, task.task_id))
        known = restored.checkpoint or Checkpoint()
        amended = shrunk(amend(known))
        if amended != known:
            statement = continuity.write_checkpoint(task.task_id, execution.owner, amended)
            await fenced(database, statement, task.task_id)


def shown(message: dict[str, Any]) -> str:
    texts = [str(part.get("content") or part.get("args") or "") for part in message.get("parts", ())]
    return " ".join(" ".join(texts).split())[:1000]
