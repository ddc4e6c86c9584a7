"""A statement is data: its text, its parameters, and how to read what comes back.

Whoever holds a connection executes it, the service asynchronously and a client synchronously, so that no
query is written twice. Each statement is one round trip and, unless a caller's transaction says otherwise,
one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

from store.types import Row

T = TypeVar("T")
R = TypeVar("R", bound=Row)

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Statement(Generic[T]):
    text: str
    params: Mapping[str, Any]
    read: Callable[[Rows], T]


Script = Generator[Statement[Any], Any, T]
"""Several statements, of which one depends on what another gave: yields each, and is sent what came back."""


@cache
def query(name: str) -> str:
    return files("store").joinpath("queries", f"{name}.sql").read_text("utf-8")


def nothing(_: Rows) -> None:
    return None


def value(rows: Rows) -> Any:
    """The single column of the single row."""
    return next(iter(rows[0].values()))


def count(rows: Rows) -> int:
    return len(rows)


def all_of(kind: type[R]) -> Callable[[Rows], list[R]]:
    return lambda rows: [kind.model_validate(row) for row in rows]


def one_or_none(kind: type[R]) -> Callable[[Rows], R | None]:
    return lambda rows: kind.model_validate(rows[0]) if rows else None
