"""The agents this process serves, loaded by name and made durable."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset
from pydantic_ai_harness.compaction import DEFAULT_CONTEXT_WINDOW, resolve_context_window

from agent.durability import Terms, has_durability, make_durable
from store.errors import Misconfigured
from store.types import AgentCard

SPEC_ENDINGS = (".yaml", ".yml", ".json")

Agents = Mapping[str, Agent[Any, Any]]


def load_agents(references: Iterable[str]) -> Agents:
    """The named agents, or one sentence that says which reference is wrong and how."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    agents: dict[str, Agent[Any, Any]] = {}
    for reference in references:
        agent = _load_spec(reference) if reference.endswith(SPEC_ENDINGS) else _load_attribute(reference)
        name = agent.name
        if not name:
            raise Misconfigured(f"The agent {reference} has no name: give it one, Agent(..., name='...').")
        if name in agents:
            raise Misconfigured(f"Two agents are named {name!r}; the second is {reference}. Names must differ.")
        if has_durability(agent):
            raise Misconfigured(
                f"The agent {reference} carries a durability of its own: remove it, Perdure brings one."
            )
        agents[name] = agent
    return agents


def make_all_durable(agents: Agents, terms: Terms) -> Agents:
    durable: dict[str, Agent[Any, Any]] = {}
    for name, agent in agents.items():
        try:
            durable[name] = make_durable(agent, terms)
        except UserError as error:
            raise Misconfigured(f"The agent {name!r} cannot be made durable: {_one_line(error)}") from error
    return durable


def describe(agents: Agents, window: int | None = None) -> list[AgentCard]:
    """`window` is what the settings say of every model's."""
    return [
        AgentCard(
            name=name,
            description=agent.description if isinstance(agent.description, str) else None,
            model=model_name(agent),
            tools=tuple(sorted(_tool_names(agent.toolsets))),
            context_window=window or _window(agent),
        )
        for name, agent in agents.items()
    ]


def _window(agent: Agent[Any, Any]) -> int:
    model = agent.model
    return (resolve_context_window(model) if isinstance(model, (Model, str)) else None) or DEFAULT_CONTEXT_WINDOW


def model_name(agent: Agent[Any, Any]) -> str | None:
    model = agent.model
    return model.model_id if isinstance(model, Model) else model if isinstance(model, str) else None


def _tool_names(toolsets: Iterable[AbstractToolset[Any]]) -> set[str]:
    names: set[str] = set()

    def collect(toolset: AbstractToolset[Any]) -> None:
        if isinstance(toolset, FunctionToolset):
            names.update(toolset.tools)

    for toolset in toolsets:
        toolset.apply(collect)
    return names


def _load_attribute(reference: str) -> Agent[Any, Any]:
    module_name, colon, attribute = reference.partition(":")
    if not colon or not module_name or not attribute:
        raise Misconfigured(
            f"PERDURE_AGENTS is {reference!r}; allowed is package.module:attribute or the path of a spec file."
        )
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not module_name.startswith(error.name):
            raise Misconfigured(
                f"The agents in {module_name} need the module {error.name!r}, which is missing."
            ) from error
        raise Misconfigured(
            f"There is no module {module_name!r} (searched in {Path.cwd()} and what is installed)."
        ) from error
    except Exception as error:
        raise Misconfigured(f"Importing {module_name} failed: {type(error).__name__}: {_one_line(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise Misconfigured(f"The module {module_name} has no attribute {attribute!r}.")
        found = getattr(found, part)
    if not isinstance(found, Agent):
        raise Misconfigured(f"{reference} is a {type(found).__name__}, not a Pydantic AI Agent.")
    return found  # pyright: ignore[reportUnknownVariableType]


def _load_spec(path: str) -> Agent[Any, Any]:
    if not Path(path).is_file():
        raise Misconfigured(f"There is no agent spec file {path!r}.")
    try:
        return Agent.from_file(path)
    except Exception as error:
        raise Misconfigured(f"The agent spec {path} cannot be used: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
