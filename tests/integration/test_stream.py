"""A session can be followed while its answers are made: no gap, no repeat, and a word when one begins anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from agent.client import AgentClient
from agent.feed import follow
from store.bell import Bell
from store.database import Database
from store.errors import InvalidInput
from store.stream import Happening, Place, StreamRow, happenings, read_place
from tests.serving import serving
from tests.workers import Place as Ground
from tests.workers import Worker

Hire = Callable[..., Worker]

TALKER = "tests.talkers:talker"


def let(place: Ground, words: int) -> None:
    waiting = place.folder / "words.new"
    waiting.write_text(str(words))
    waiting.replace(place.folder / "words")


async def collect(url: str, session: str, start: Place, enough: Callable[[list[Happening]], bool]) -> list[Happening]:
    seen: list[Happening] = []
    async with Database(url) as database, Bell(url) as bell:
        async with asyncio.timeout(30):
            async for happening in follow(database, bell, session, start):
                seen.append(happening)
                if enough(seen):
                    break
    return seen


def text_of(seen: list[Happening]) -> str:
    """What a client shows of the answer: pieces add up, a reset takes them back, the record replaces them."""
    text = ""
    for happening in seen:
        match happening.kind:
            case "token":
                text += str(happening.data["delta"])
            case "reset":
                text = ""
            case "model.responded":
                text = "".join(part["content"] for part in happening.data["parts"])
            case _:
                pass
    return text


def run(collecting: Coroutine[Any, Any, list[Happening]]) -> list[Happening]:
    return asyncio.run(collecting)


def test_an_answer_is_followed_while_it_is_made_and_then_replaced_by_its_record(
    client: AgentClient, place: Ground, hire: Hire
) -> None:
    let(place, 3)
    hire(TALKER)
    task = client.enqueue("talker", "talk", session="s-1")
    first = run(collect(place.url, "s-1", Place(), lambda seen: "word3" in text_of(seen)))
    assert [happening.kind for happening in first][:2] == ["task.accepted", "task.started"]
    assert text_of(first) == "word1 word2 word3 "

    let(place, 9)
    rest = run(collect(place.url, "s-1", first[-1].place, lambda seen: seen[-1].kind == "task.finished"))
    assert "word3" not in "".join(str(each.data["delta"]) for each in rest if each.kind == "token"), "no repeat"
    assert text_of(rest) == "word1 word2 word3 word4 word5 word6 word7 word8 word9 "
    assert task.result(timeout=30) == text_of(rest)

    again = run(collect(place.url, "s-1", Place(), lambda seen: seen[-1].kind == "task.finished"))
    assert "token" not in [happening.kind for happening in again], "what is recorded needs no pieces"
    assert text_of(again) == text_of(rest)


def test_an_answer_cut_by_a_crash_is_taken_back_and_begun_anew(client: AgentClient, place: Ground, hire: Hire) -> None:
    let(place, 4)
    doomed = hire(TALKER)
    client.enqueue("talker", "talk", session="s-1")
    first = run(collect(place.url, "s-1", Place(), lambda seen: "word4" in text_of(seen)))
    doomed.kill()
    let(place, 2)
    hire(TALKER)
    second = run(collect(place.url, "s-1", first[-1].place, lambda seen: "word2" in text_of(seen[1:])))
    kinds = [happening.kind for happening in second]
    assert kinds.index("worker.died") < kinds.index("reset") < kinds.index("token")
    assert kinds.count("reset") == 1
    assert text_of(second) == "word1 word2 "
    let(place, 9)
    third = run(collect(place.url, "s-1", second[-1].place, lambda seen: seen[-1].kind == "task.finished"))
    assert text_of([*first, *second, *third]).endswith("word9 ")
    numbers = [each.place.seq for each in [*first, *second, *third] if each.kind not in ("token", "reset")]
    assert numbers == list(range(1, len(numbers) + 1)), "every event once, in order"


def test_a_client_over_http_goes_on_from_the_last_event_it_has(
    client: AgentClient, place: Ground, hire: Hire, url: str
) -> None:
    let(place, 2)
    hire(TALKER)
    client.enqueue("talker", "talk", session="s-1")
    with serving(url) as served, served.client() as http:
        with http.stream("GET", "/v1/sessions/s-1/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            first = told(stream, lambda event: "word2" in event["data"].get("delta", ""))
        assert [event["kind"] for event in first][:2] == ["task.accepted", "task.started"]
        let(place, 9)
        last = {"Last-Event-ID": first[-1]["id"]}
        with http.stream("GET", "/v1/sessions/s-1/events", headers=last) as stream:
            rest = told(stream, lambda event: event["kind"] == "task.finished")
        numbers = [event["seq"] for event in [*first, *rest] if "seq" in event]
        assert numbers == list(range(1, len(numbers) + 1))
        [record] = [event for event in rest if event["kind"] == "model.responded"]
        assert record["data"]["parts"][0]["content"].endswith("word9 ")
        assert http.get("/v1/sessions/none/events").status_code == 404
        refused = http.get("/v1/sessions/s-1/events", headers={"Last-Event-ID": "1; DROP"})
        assert (refused.status_code, refused.headers["content-type"]) == (422, "application/problem+json")


def told(stream: httpx.Response, is_last: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The events of a stream up to one that one waits for."""
    events: list[dict[str, Any]] = []
    fields: dict[str, str] = {}
    for line in stream.iter_lines():
        name, _, content = line.partition(": ")
        if name in ("id", "data"):
            fields[name] = content
        elif not line and "data" in fields:
            events.append({**json.loads(fields["data"]), "id": fields["id"]})
            fields = {}
            if is_last(events[-1]):
                return events
    raise AssertionError("the stream ended")


def test_a_request_that_is_sent_again_takes_back_what_the_first_one_said() -> None:
    def piece(attempt: str, n: int) -> StreamRow:
        return StreamRow(
            seq=None, attempt=attempt, n=n, task_id=None, kind="token", data={"delta": "x"}, at=None, detail=None
        )

    told = list(happenings([piece("bb", 1), piece("bb", 2)], Place(7, "aa", 5)))
    assert [each.kind for each in told] == ["reset", "token", "token"]
    assert [str(each.place) for each in told] == ["7", "7.bb.1", "7.bb.2"]
    assert list(happenings([], Place(7, "aa", 5))) == []


@pytest.mark.parametrize("written", ["", "x", "-1", "1.2", "1.zz.3", "1.ab.c", "9" * 30, "1.ab.1; DROP TABLE"])
def test_a_place_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(InvalidInput):
        read_place(written)


@pytest.mark.parametrize("written", ["0", "12", "12.f00d.7"])
def test_a_place_reads_as_it_is_written(written: str) -> None:
    assert str(read_place(written)) == written
