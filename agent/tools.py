"""What a tool says about itself: that it only reads, or what to do when its outcome is in doubt."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from store.types import InDoubtPolicy

F = TypeVar("F", bound=Callable[..., Any])

MARK = "__perdure_policy__"


@dataclass(frozen=True)
class Pure:
    """Reads only: running it again harms nobody."""


@dataclass(frozen=True)
class Effect:
    """Changes the world: started at most once unless its policy says otherwise."""

    in_doubt: InDoubtPolicy = "report"
    verify: Callable[..., Any] | None = None


Policy = Pure | Effect

UNMARKED = Effect()
"""A tool that says nothing is never run twice silently."""

_key: ContextVar[str | None] = ContextVar("perdure_idempotency_key", default=None)


def pure(tool: F) -> F:
    """Mark a tool that only reads. After a crash it simply runs again."""
    setattr(tool, MARK, Pure())
    return tool


def effect(*, in_doubt: InDoubtPolicy = "report", verify: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Mark a tool that changes the world, and say what to do if a crash leaves its outcome unknown.

    `retry` runs it again (it is idempotent under `idempotency_key()`); `verify` calls `verify` with the
    tool's arguments and runs it again only if that answers nothing or False; `ask` waits for a person;
    `report` tells the model that the outcome is unknown.
    """
    if in_doubt not in get_args(InDoubtPolicy):
        raise ValueError(f"in_doubt is {in_doubt!r}; allowed are {', '.join(get_args(InDoubtPolicy))}")
    if (in_doubt == "verify") != (verify is not None):
        raise ValueError('in_doubt="verify" and verify=... go together')

    def mark(tool: F) -> F:
        setattr(tool, MARK, Effect(in_doubt, verify))
        return tool

    return mark


def policy_of(tool: Callable[..., Any]) -> Policy:
    return getattr(tool, MARK, UNMARKED)


def idempotency_key() -> str:
    """The key of the running call: the same however often it is started, different for every other call."""
    key = _key.get()
    if key is None:
        raise RuntimeError("idempotency_key() is known only inside a tool that Perdure runs")
    return key
