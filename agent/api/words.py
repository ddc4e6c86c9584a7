"""The small types of requests: ids, texts and data that Postgres can hold."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Path, Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from agent.api.door import SLASH
from store.plain import is_text, readable
from store.types import Json

LARGEST_PLACE = 2**53 - 1
"""The largest whole number that every JSON reader reads as it is."""

# What a body or a path must look like, said in the description too. The checks after them also know of halves of
# surrogate pairs, for which patterns have no words.
TEXT = r"^[^\x00]*$"
SPOKEN = r"^[^\x00]*[^\x00 \t\r\n][^\x00]*$"
NAME = r"^[^\x00-\x1f\x7f-\x9f]+$"


def _text(given: str) -> str:
    if not is_text(given):
        raise ValueError("holds characters that are no text")
    return given


def with_slashes(given: str) -> str:
    return given.replace(SLASH, "/")


def _data(given: dict[str, Json]) -> dict[str, Json]:
    if readable(given) != given:
        raise ValueError("holds values that JSON or Postgres cannot hold")
    return given


def _whole(given: object) -> object:
    """42.0 is a whole number in JSON, and "42" is none."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


Input = Annotated[str, Field(pattern=SPOKEN), AfterValidator(_text)]
Text = Annotated[str, Field(pattern=TEXT), AfterValidator(_text)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=NAME), AfterValidator(_text)]
Note = Annotated[str, Field(max_length=4000, pattern=TEXT), AfterValidator(_text)]
Word = Annotated[str | None, Query(max_length=200, pattern=TEXT)]
Data = Annotated[dict[str, Any], AfterValidator(_data)]
Place = Annotated[int, Field(ge=0, le=LARGEST_PLACE, strict=True), BeforeValidator(_whole)]

SessionIn = Annotated[
    str,
    Path(min_length=1, max_length=200, pattern=NAME, description="A session's id; a slash in it is written %2F."),
    BeforeValidator(with_slashes),
]
TaskIn = Annotated[
    str,
    Path(min_length=1, max_length=200, pattern=NAME, description="A task's id."),
    BeforeValidator(with_slashes),
]


IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=500,
        pattern=r"^[\x20-\x7e]+$",
        description="The same key again gives the same answer, and nothing happens twice.",
    ),
]


class Request(BaseModel):
    """A body. What it does not know it refuses, so that a misspelt word does not pass unseen."""

    model_config = ConfigDict(extra="forbid", frozen=True)
