"""What happens in a session, as it happens: events of its journal, and the pieces of an answer in the making.

A place in the stream is written `12`, after event 12, or `12.f00d.7`, after that and the first 7 pieces of an answer.
It is all a reader has to keep, so that any process can go on where another one stopped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from store.errors import InvalidInput
from store.statement import Statement, all_of, nothing, query
from store.types import Json, Row, TaskId

MOST_EVENTS = 200
"""Read at once; the rest follows."""

SETTLING = frozenset(
    {"model.responded", "model.failed", "task.finished", "task.failed", "task.cancelled", "task.waited", "task.dead"}
)
"""After these, pieces that were sent are superseded by what is recorded."""

PLACE = re.compile(r"(\d{1,18})(?:\.([0-9a-f]{1,32})\.(\d{1,9}))?")


class StreamRow(Row):
    seq: int | None
    attempt: str | None
    n: int | None
    task_id: TaskId | None
    kind: str
    data: dict[str, Json]
    at: datetime | None
    detail: Json


@dataclass(frozen=True)
class Piece:
    """Of an answer that a model is giving."""

    task_id: str
    owner: str
    attempt: str
    n: int
    session_id: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Place:
    seq: int = 0
    attempt: str | None = None
    n: int = 0

    def __str__(self) -> str:
        return f"{self.seq}.{self.attempt}.{self.n}" if self.attempt else str(self.seq)


@dataclass(frozen=True)
class Happening:
    """One thing that a follower is told, and the place to go on from after it."""

    place: Place
    kind: str
    task_id: TaskId | None
    data: dict[str, Json]
    at: datetime | None = None


def read_place(written: str) -> Place:
    found = PLACE.fullmatch(written.strip())
    if found is None:
        raise InvalidInput("a place in the stream is the id of an event, as in 12 or 12.f00d.7")
    seq, attempt, n = found.groups()
    return Place(int(seq), attempt, int(n or 0))


def tell(pieces: Sequence[Piece]) -> Statement[None]:
    return Statement(query("tell"), {"pieces": Jsonb([vars(piece) for piece in pieces])}, nothing)


def read_stream(session: str, place: Place) -> Statement[list[StreamRow]]:
    return Statement(
        query("read_stream"),
        {"session": session, "after": place.seq, "attempt": place.attempt, "n": place.n, "limit": MOST_EVENTS},
        all_of(StreamRow),
    )


def sweep() -> Statement[None]:
    return Statement(query("sweep_deltas"), {}, nothing)


def happenings(rows: Sequence[StreamRow], place: Place) -> Iterator[Happening]:
    """What to tell a follower who is at this place, in order.

    An answer that was begun and will be given anew, because its worker died or its request failed, is taken back by a
    `reset` before anything else is told of it.
    """
    events = [row for row in rows if row.seq is not None]
    for row in events:
        assert row.seq is not None
        if row.kind == "task.resumed" and place.attempt is not None:
            place = Place(place.seq)
            yield Happening(place, "reset", row.task_id, {})
        place = Place(row.seq) if row.kind in SETTLING else Place(row.seq, place.attempt, place.n)
        data = row.data if row.detail is None else {**row.data, _detail_of(row.kind): row.detail}
        yield Happening(place, row.kind, row.task_id, data, row.at)
    if len(events) == MOST_EVENTS:
        return
    for row in rows[len(events) :]:
        assert row.attempt is not None
        assert row.n is not None
        if place.attempt is not None and place.attempt != row.attempt:
            place = Place(place.seq)
            yield Happening(place, "reset", row.task_id, {})
        place = Place(place.seq, row.attempt, row.n)
        yield Happening(place, row.kind, row.task_id, row.data)


def _detail_of(kind: str) -> str:
    return "parts" if kind == "model.responded" else "output"
