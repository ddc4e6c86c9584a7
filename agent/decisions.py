"""What people have decided about calls, as a run takes it.

A decision is made for one call. When the task that was to use it had to be replaced before it did, the decision is
owed to the task in its place, and serves the first call of the same tool with the same arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import DeferredToolResults, ToolApproved, ToolDenied

from agent.recorder import Execution, fenced
from store import tasks
from store.database import Database
from store.plain import CannotStore, storable
from store.types import PersonDecision


def results_of(decisions: Mapping[str, PersonDecision]) -> DeferredToolResults:
    """The decisions by call, in the words of Pydantic AI."""
    results = DeferredToolResults()
    for call_id, decided in decisions.items():
        match decided.decision:
            case "approved":
                results.approvals[call_id] = ToolApproved(override_args=decided.edited)
            case "answered":
                results.calls[call_id] = decided.note or ""
            case "denied" | "expired" if decided.kind == "question":
                results.calls[call_id] = f"There is no answer: {decided.note or 'the question was declined'}."
            case "denied":
                results.approvals[call_id] = ToolDenied(decided.note or "A person denied this call.")
            case "expired":
                results.approvals[call_id] = ToolDenied(f"Nobody approved this call: {decided.note}.")
    return results


def find_owed(execution: Execution, call: ToolCallPart) -> PersonDecision | None:
    """The decision that serves this call: the one that did before a crash, else the oldest that nothing has used."""
    if not execution.owed:
        return None
    try:
        arguments = storable(call.args_as_dict())
    except (CannotStore, ValueError):
        return None
    fitting = [owed for owed in execution.owed if owed.tool == call.tool_name and owed.arguments == arguments]
    served = [owed for owed in fitting if owed.honoured_as == call.tool_call_id]
    unused = [owed for owed in fitting if owed.honoured_as is None]
    return next(iter([*served, *unused]), None)


def is_approval(owed: PersonDecision | None) -> bool:
    return owed is not None and owed.kind == "approval"


async def honour(database: Database, execution: Execution, call: ToolCallPart) -> PersonDecision | None:
    """Use the decision that is owed to this call, if there is one. Safe to repeat: it stays with the call."""
    owed = find_owed(execution, call)
    if owed is None:
        return None
    if owed.honoured_as is None:
        task = execution.task.task_id
        await fenced(database, tasks.honour(task, execution.owner, owed, call.tool_call_id), task)
    execution.owed.remove(owed)
    execution.decisions[call.tool_call_id] = owed
    return owed
