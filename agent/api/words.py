"""The small types of requests: ids, texts and data that Postgres can hold."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Path
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from agent.api.door import SLASH
from store.errors import InvalidInput
from store.plain import is_text, readable
from store.types import Json

LARGEST_PLACE = 2**63 - 1


def _text(given: str) -> str:
    if not is_text(given):
        raise ValueError("holds characters that are no text")
    return given


def _name(given: str) -> str:
    if any(ord(each) < 32 or 127 <= ord(each) < 160 for each in _text(given)):
        raise ValueError("holds control characters")
    return given


def _id(given: str) -> str:
    return _name(given.replace(SLASH, "/"))


def _data(given: dict[str, Json]) -> dict[str, Json]:
    if readable(given) != given:
        raise ValueError("holds values that JSON or Postgres cannot hold")
    return given


Text = Annotated[str, AfterValidator(_text)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_name)]
Note = Annotated[str, Field(max_length=4000), AfterValidator(_text)]
Data = Annotated[dict[str, Any], AfterValidator(_data)]
Place = Annotated[int, Field(ge=0, le=LARGEST_PLACE, strict=True)]

SessionIn = Annotated[
    str,
    Path(min_length=1, max_length=200, description="A session's id; a slash in it is written %2F."),
    AfterValidator(_id),
]
TaskIn = Annotated[str, Path(min_length=1, max_length=200, description="A task's id."), AfterValidator(_id)]


def _idempotency(given: str | None) -> str | None:
    if given is not None and not (given.isascii() and given.isprintable()):
        raise ValueError("has printable ASCII characters only")
    return given


IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=500,
        description="The same key again gives the same answer, and nothing happens twice.",
    ),
    AfterValidator(_idempotency),
]


class Request(BaseModel):
    """A body. What it does not know it refuses, so that a misspelt word does not pass unseen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def check_word(given: str | None) -> str | None:
    """A word of a query string."""
    if given is not None and not is_text(given):
        raise InvalidInput("the query holds characters that are no text")
    return given
