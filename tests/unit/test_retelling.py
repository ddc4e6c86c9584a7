"""What happened is told as events of Pydantic AI; what a crash cut off goes on, or is taken back when it differs."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import FunctionToolResultEvent, PartDeltaEvent, PartEndEvent, PartStartEvent

from agent.protocols.retelling import Retelling, TakenBack
from store.stream import Happening, Place
from store.types import TaskId


def told(retelling: Retelling, kind: str, /, **data: Any) -> list[Any]:
    return list(retelling.tell(Happening(Place(1), kind, TaskId("t"), data)))


def token(retelling: Retelling, text: str, part: int = 0, **more: Any) -> list[Any]:
    return told(retelling, "token", part=part, delta=text, **{"kind": "text", **more})


def record(retelling: Retelling, *parts: dict[str, Any]) -> list[Any]:
    return told(retelling, "model.responded", parts=list(parts))


def text(content: str) -> dict[str, Any]:
    return {"part_kind": "text", "content": content}


def words(events: list[Any]) -> str:
    shown = ""
    for event in events:
        match event:
            case TakenBack():
                shown = ""
            case PartStartEvent(part=part):
                shown += getattr(part, "content", "")
            case PartDeltaEvent(delta=delta):
                shown += getattr(delta, "content_delta", "")
            case _:
                pass
    return shown


def test_pieces_are_told_once_and_the_record_only_adds_what_is_missing() -> None:
    story = Retelling()
    first = [*token(story, "one "), *token(story, "two ")]
    assert words(first) == "one two "
    last = record(story, text("one two three"))
    assert words(last) == "three"
    assert isinstance(last[-1], PartEndEvent)


def test_an_answer_that_is_given_anew_alike_goes_on_unseen() -> None:
    story = Retelling()
    first = [*token(story, "one two "), *told(story, "reset")]
    again = [*token(story, "one "), *token(story, "two three "), *record(story, text("one two three four"))]
    assert words([*first, *again]) == "one two three four"
    assert not [event for event in again if isinstance(event, TakenBack | PartStartEvent)]


def test_an_answer_that_differs_takes_back_what_was_told_and_keeps_what_is_on_record() -> None:
    story = Retelling()
    call = {"part_kind": "tool-call", "tool_name": "look", "args": "{}", "tool_call_id": "c"}
    record(story, call)
    done = told(story, "tool.finished", call_id="c", tool="look", outcome="returned", output="seen")
    assert isinstance(done[0], FunctionToolResultEvent) and done[0].part.content == "seen"
    token(story, "one two ")
    told(story, "reset")
    again = token(story, "one and ")
    kinds = [type(event).__name__ for event in again]
    assert kinds == [
        "PartEndEvent", "TakenBack", "PartStartEvent", "PartEndEvent", "FunctionToolCallEvent",
        "FunctionToolResultEvent", "PartStartEvent",
    ]  # fmt: skip
    assert again[1].settled == 4
    assert words(again) == "one and "


def test_a_record_that_is_shorter_than_what_was_told_takes_it_back() -> None:
    story = Retelling()
    token(story, "one two ")
    told(story, "reset")
    assert words([TakenBack(), *record(story, text("one"))]) == "one"


def test_a_call_that_left_no_record_is_closed() -> None:
    story = Retelling()
    record(story, {"part_kind": "tool-call", "tool_name": "look", "args": "{", "tool_call_id": "c"})
    [closed, *_] = token(story, "again")
    assert (closed.part.tool_call_id, closed.part.outcome) == ("c", "failed")


def test_a_denial_is_the_result_of_its_call() -> None:
    story = Retelling()
    record(story, {"part_kind": "tool-call", "tool_name": "open", "args": "{}", "tool_call_id": "c"})
    told(story, "approval.requested", call_id="c", tool="open", arguments={}, kind="approval")
    assert list(story.questions) == ["c"]
    [denied] = told(story, "approval.denied", call_id="c", tool="open", note="no")
    assert (denied.part.outcome, denied.part.content, story.questions) == ("denied", "no", {})
