"""The history a model is sent: whole exchanges, and no call without its result."""

from __future__ import annotations

from typing import Any

from agent.context import UNANSWERED, WAITING, assemble, closed
from store.types import OpenedTask, SessionId, StoredMessage, TaskId


def request(text: str) -> dict[str, Any]:
    return {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": text}]}


def answer(*calls: str) -> dict[str, Any]:
    return {
        "kind": "request",
        "parts": [{"part_kind": "tool-return", "tool_call_id": c, "content": "x"} for c in calls],
    }


def response(*calls: str) -> dict[str, Any]:
    parts = [{"part_kind": "tool-call", "tool_name": "t", "tool_call_id": c, "args": {}} for c in calls]
    return {"kind": "response", "parts": parts or [{"part_kind": "text", "content": "ok"}]}


def stored(*rows: tuple[str, str | None, bool, dict[str, Any]]) -> list[StoredMessage]:
    return [
        StoredMessage(position=n, task_id=TaskId(t), continues=TaskId(c) if c else None, is_waiting=w, message=m)
        for n, (t, c, w, m) in enumerate(rows, 1)
    ]


def task(continues: str | None = None) -> OpenedTask:
    return OpenedTask(
        task_id=TaskId("now"), session_id=SessionId("s"), agent="a", user_id=None,
        kind="continuation" if continues else "input", continues=TaskId(continues) if continues else None,
        input="i", history_through=99, outcome=None, error=None, decisions=(),
    )  # fmt: skip


def test_finished_exchanges_stay_in_order() -> None:
    rows = stored(("1", None, False, request("a")), ("1", None, False, response()), ("2", None, False, request("b")))
    assert assemble(rows, task()) == [row.message for row in rows]


def test_a_waiting_call_is_closed_for_others_with_a_note() -> None:
    rows = stored(("1", None, True, request("a")), ("1", None, True, response("c1")))
    history = assemble(rows, task())
    assert [part["content"] for part in history[-1]["parts"]] == [WAITING]


def test_a_failed_tasks_open_call_is_closed() -> None:
    rows = stored(("1", None, False, request("a")), ("1", None, False, response("c1")))
    assert assemble(rows, task())[-1]["parts"][0]["content"] == UNANSWERED


def test_the_continued_exchange_comes_last_and_stays_open() -> None:
    rows = stored(
        ("1", None, True, request("a")),
        ("1", None, True, response("c1")),
        ("2", None, False, request("b")),
        ("2", None, False, response()),
    )
    assert assemble(rows, task(continues="1")) == [rows[2].message, rows[3].message, rows[0].message, rows[1].message]


def test_no_turn_stands_between_a_call_and_its_late_result() -> None:
    rows = stored(
        ("1", None, True, request("a")),
        ("1", None, True, response("c1")),
        ("2", None, False, request("b")),
        ("2", None, False, response()),
        ("3", "1", False, answer("c1")),
        ("3", "1", False, response()),
    )
    assert assemble(rows, task()) == [rows[n].message for n in (2, 3, 0, 1, 4, 5)]


def test_only_missing_answers_are_added() -> None:
    whole = closed([response("c1", "c2"), answer("c1"), response()], "note")
    assert [part["tool_call_id"] for part in whole[1]["parts"]] == ["c2"]
    assert whole[2] == answer("c1")
