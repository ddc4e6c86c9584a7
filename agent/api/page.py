"""Listings by the page. A cursor names the last thing seen, so that what is added meanwhile moves nothing."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from store.errors import InvalidInput
from store.plain import is_text

T = TypeVar("T")
P = TypeVar("P")

Limit = Annotated[int, Query(ge=1, le=500, description="At most this many.")]
Cursor = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=2000,
        pattern="^[A-Za-z0-9_-]+$",
        description="`next` of the page before; leave it out for the first page.",
    ),
]


class Page(BaseModel, Generic[T]):
    items: list[T]
    next: str | None = Field(description="The cursor of the page that follows; null after the last.")


class Listing(Generic[P]):
    """One order of things. `place` is what a row's place in it is made of."""

    def __init__(self, name: str, place: type[P]) -> None:
        self.name = name
        self._adapter: TypeAdapter[tuple[str, P]] = TypeAdapter(tuple[str, place])  # type: ignore[valid-type]

    def after(self, cursor: str | None) -> P | None:
        if cursor is None:
            return None
        try:
            text = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), b"-_", validate=True)
            name, place = self._adapter.validate_json(text)
        except (UnicodeEncodeError, binascii.Error, ValidationError):
            name, place = "", None
        if name != self.name or place is None or not _fits(place):
            raise InvalidInput("this cursor is of no page of this listing; leave it out to begin at the first")
        return place

    def page(self, rows: Sequence[Any], limit: int, place: Callable[[Any], P]) -> dict[str, Any]:
        """A page of rows, of which one more than asked for was read, if there was one."""
        shown = rows[:limit]
        if len(rows) <= limit:
            return {"items": shown, "next": None}
        return {"items": shown, "next": self.at(place(shown[-1]))}

    def at(self, place: P) -> str:
        """The cursor of what follows a place."""
        text = self._adapter.dump_json((self.name, place))
        return base64.urlsafe_b64encode(text).decode().rstrip("=")


def _fits(place: Any) -> bool:
    """Whether Postgres can compare with it."""
    match place:
        case tuple():
            return all(_fits(part) for part in place)
        case str():
            return is_text(place)
        case int():
            return abs(place) < 2**63
        case _:
            return True
