"""Perdure: Pydantic AI agents whose sessions outlive every process that ever worked on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.tools import effect, idempotency_key, pure
from agent.watch import beat

if TYPE_CHECKING:
    from pydantic_ai import FunctionToolset

__all__ = ["beat", "effect", "idempotency_key", "pure", "workspace"]


def workspace() -> FunctionToolset[Any]:
    """Tools on the files of the session, for an agent that wants them: `Agent(..., toolsets=[workspace()])`."""
    # Here, so that applications that only enqueue need not load the frameworks.
    from agent.space import workspace_tools

    return workspace_tools()
