"""What is stored is JSON, comes back as it was, and never makes the loader run anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from pydantic import BaseModel
from pydantic_ai.exceptions import ModelHTTPError, ModelRateLimitError
from pydantic_ai.messages import BinaryContent, ModelResponse, TextPart, ToolCallPart, ToolReturn

from agent.serializer import JsonSerializer, RecordedError, pack, unpack
from store.plain import CannotLoad, CannotStore


class Order(BaseModel):
    number: int
    placed: datetime


@dataclass
class Point:
    x: int


def round_trip(value: object) -> object:
    text = JsonSerializer().serialize(value)
    json.loads(text)
    return JsonSerializer().deserialize(text)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 1, 1.5, "text", [1, [2]], {"a": {"b": None}}, (1, 2), {1, 2}, {1: "a"}, {"$": "x", "v": 1},
        datetime(2026, 11, 18, tzinfo=UTC), date(2026, 11, 18), timedelta(seconds=5), Decimal("1.10"),
        UUID(int=7), b"\x00\xff", Order(number=1, placed=datetime(2026, 1, 1, tzinfo=UTC)), Point(3),
        ModelResponse(parts=[TextPart("hi"), ToolCallPart("t", {"a": 1}, "c1")]),
    ],
)  # fmt: skip
def test_values_come_back_as_they_were(value: object) -> None:
    assert round_trip(value) == value


def test_errors_that_decide_what_happens_next_keep_their_kind() -> None:
    error = ModelHTTPError.for_category(ModelRateLimitError, status_code=429, model_name="m", body={"a": 1})
    back = round_trip(error)
    assert isinstance(back, ModelRateLimitError)
    assert isinstance(back, ModelHTTPError)
    assert (back.status_code, back.body) == (429, {"a": 1})


def test_other_errors_keep_their_name_and_message() -> None:
    back = round_trip(KeyError("nope"))
    assert isinstance(back, RecordedError)
    assert (back.kind, str(back)) == ("KeyError", "'nope'")


@pytest.mark.parametrize("tag", ["os:system", "subprocess:Popen", "builtins:eval", "no.such:Thing", "tests:Order"])
def test_a_forged_type_is_refused(tag: str) -> None:
    with pytest.raises(CannotLoad):
        JsonSerializer().deserialize(json.dumps({"$": tag, "v": {"x": 1}}))


def test_what_has_no_json_form_is_named() -> None:
    with pytest.raises(CannotStore, match="object has no JSON form"):
        JsonSerializer().serialize(object())


def test_tool_results_are_plain_data_and_pictures_stay_pictures() -> None:
    assert unpack(pack({"when": date(2026, 1, 1), "who": Point(1)})) == {"when": "2026-01-01", "who": {"x": 1}}
    assert unpack(pack({"$": "os:system", "v": 1})) == {"$": "os:system", "v": 1}
    picture = BinaryContent(b"\x89PNG", media_type="image/png")
    assert unpack(pack([picture, "caption"])) == [picture, "caption"]
    returned = ToolReturn("done", content=["see", picture], metadata={"n": 1})
    back = unpack(pack(returned))
    assert isinstance(back, ToolReturn)
    assert (back.return_value, back.metadata, back.content[1].data) == ("done", {"n": 1}, picture.data)
