"""Whatever interrupted a session: the next request knows what it was about, and the user is told once."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from agent.client import AgentClient
from tests.workers import Place, Worker, eventually

Hire = Callable[..., Worker]
AGENT = "tests.agents:planner"
FAST = "tests.fast:planner"


def text_of(request: dict[str, Any]) -> str:
    return json.dumps(request["messages"], ensure_ascii=False)


def test_after_kill_9_the_next_request_knows_everything_and_the_user_is_told_once(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Hire
) -> None:
    doomed = hire(FAST)
    client.enqueue("planner", "You must never dredge on Sundays. Hello.", session="s-1")
    for turn in range(100):
        client.enqueue("planner", f"turn {turn}", session="s-1")
    task = client.enqueue("planner", "plan it", session="s-1")
    eventually(lambda: place.world("ran"))
    doomed.kill()
    sent_before = len(place.world("sent"))
    (place.folder / "open").write_text("")
    hire(AGENT)
    assert task.result(timeout=60) == "the harbour stands"

    request = place.world("sent")[sent_before]
    text = text_of(request)
    order = [
        text.index(part)
        for part in ("never dredge on Sundays", "build the harbour", "2 of 4 done", "use stone", "turn 99")
    ]
    assert order == sorted(order), "state first, then the recent turns"
    assert request["messages"][-1]["instructions"] == "You are the harbour master."
    [notice] = client.session("s-1").notices()
    assert "build the harbour" in notice.body
    assert "2 of 4 steps of the plan done" in notice.body
    assert "In doubt, because nobody recorded how it ended: pass_gate_again" in notice.body
    kinds = [event.kind for event in client.session("s-1").events() if event.task_id == task.id]
    assert kinds[kinds.index("worker.died") + 1] == "restart.noticed", "the first thing after the restart"
    said = client.session("s-1").messages()
    assert [row.notice_id for row in said if row.notice_id] == [notice.notice_id]
    place = next(index for index, row in enumerate(said) if row.notice_id)
    assert said[place].message["parts"][0]["content"] == notice.body
    assert said[place - 1].message["parts"][0]["content"] == "plan it", "where the interruption was"
    assert {row.task_id for row in said[place:]} == {task.id}
    handoff = eventually(client.session("s-1").handoff)
    assert (handoff.reason, handoff.exam_score) == ("crash", 1.0)
    assert client.session("s-1").read().coherence == 1.0


def test_a_planned_stop_leaves_a_handoff_filled_from_facts(client: AgentClient, place: Place, hire: Hire) -> None:
    worker = hire(AGENT, drain_seconds=0.5)
    client.enqueue("planner", "Only stone may be used.", session="s-1")
    task = client.enqueue("planner", "plan it", session="s-1")
    client.enqueue("planner", "and then?", session="s-1")
    eventually(lambda: place.world("ran"))
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(10) == 0

    handoff = client.session("s-1").handoff()
    assert handoff is not None
    assert handoff.reason == "planned"
    document = handoff.document
    assert document["working_on"] == "build the harbour"
    assert (document["done"], document["planned"]) == (2, 4)
    assert document["decisions"] == [{"decision": "use stone", "reason": "wood rots"}]
    assert document["constraints"] == ["Only stone may be used."]
    assert [doubt["tool"] for doubt in document["in_doubt"]] == ["pass_gate_again"]
    assert document["last_completed_step"] == "part 1"
    assert document["pending_steps"] == ["part 2", "part 3"]
    assert document["pending_inputs"] == ["and then?"]
    assert "## Immediate next steps" in handoff.markdown
    (place.folder / "open").write_text("")
    hire(AGENT)
    assert task.result(timeout=30) == "the harbour stands"
    assert [notice.kind for notice in client.session("s-1").notices()] == ["planned"]


def test_a_correction_reaches_the_next_request_and_stands_before_the_summary(
    client: AgentClient, place: Place, hire: Hire
) -> None:
    worker = hire(AGENT)
    task = client.enqueue("planner", "plan it", session="s-1")
    eventually(lambda: place.world("ran"))
    worker.kill()
    (place.folder / "open").write_text("")
    hire(AGENT)
    task.result(timeout=30)
    [notice] = client.session("s-1").notices()
    client.acknowledge("s-1", notice.notice_id, correction="No: we build a lighthouse")
    client.enqueue("planner", "go on", session="s-1").result(timeout=30)
    text = text_of(place.world("sent")[-1])
    assert text.index("No: we build a lighthouse") < text.index("build the harbour")
    assert "corrections by the user; they count more than everything else here" in text


def test_idle_sessions_get_no_notice_and_restarts_in_quick_succession_share_one(
    client: AgentClient, place: Place, hire: Hire
) -> None:
    worker = hire(AGENT, isolate_after=99)
    client.enqueue("planner", "hello", session="idle").result(timeout=30)
    client.enqueue("planner", "plan it", session="busy")
    for lives in range(1, 4):
        eventually(lambda lives=lives: len(place.world("ran")) == lives)
        worker.kill()
        worker = hire(AGENT, isolate_after=99)
    assert client.session("idle").notices() == []
    eventually(lambda: client.session("busy").notices()[0].times == 3)
    [notice] = client.session("busy").notices()
    assert "3 interruptions in short time" in notice.body


@pytest.mark.parametrize(
    ("summariser", "turns", "window"),
    [("fine", 1000, 8000), ("fails", 100, 4000), ("nonsense", 100, 4000), ("forgetful", 100, 4000)],
)
def test_a_long_session_on_a_small_window(
    client: AgentClient,
    db: psycopg.Connection,
    place: Place,
    hire: Hire,
    monkeypatch: pytest.MonkeyPatch,
    summariser: str,
    turns: int,
    window: int,
) -> None:
    monkeypatch.setenv("TEST_SUMMARISER", summariser)
    hire(FAST, context_window=window)
    with psycopg.connect(place.url) as connection:
        client.enqueue("planner", "You must never dredge on Sundays.", session="long", connection=connection)
        for turn in range(turns):
            client.enqueue("planner", f"turn {turn}: " + "words " * 30, session="long", connection=connection)
        last = client.enqueue("planner", "the last one", session="long", connection=connection)
    assert last.result(timeout=300) == "noted: the last one"

    requests = place.world("sent")
    assert max(request["tokens"] for request in requests) <= window
    assert "never dredge on Sundays" in text_of(requests[-1])
    rows = db.execute(
        "SELECT through, after, strategy, exam_score, note, tokens_before, tokens_after"
        " FROM agent.compactions ORDER BY through"
    ).fetchall()
    assert 2 <= len(rows) < turns / 5, "compactions are rare"
    assert all(row[6] < row[5] for row in rows)
    assert {row[2] for row in rows} == ({"extract"} if summariser == "fails" else {"summary"})
    if summariser in ("nonsense", "forgetful"):
        assert all("constraint" in row[4] for row in rows), "the record says what was put back"
        summaries = [row.summary or "" for row in client.session("long").compactions()]
        assert all("never dredge on Sundays" in summary for summary in summaries)
    assert [found.position for found in client.session("long").search("turn 3: words")] == [10, 9]
    assert client.session("long").read().compactions == len(rows)
    assert db.execute("SELECT count(*) FROM agent.messages").fetchall() == [(2 * (turns + 2),)], "originals stay"
    halves = db.execute(
        "SELECT through > (SELECT max(through) / 2 FROM agent.compactions), count(*) FROM agent.compactions GROUP BY 1"
    ).fetchall()
    early, late = dict(halves)[False], dict(halves)[True]
    assert abs(early - late) <= 2, "compactions per turn stay flat"


def test_old_results_of_calls_make_room_and_that_is_on_record(client: AgentClient, place: Place, hire: Hire) -> None:
    hire("tests.readers:reader", context_window=6000)
    task = client.enqueue("reader", "read it all", session="s-1")
    assert task.result(timeout=60) == "read 40 pages"
    requests = place.world("sent")
    assert max(request["tokens"] for request in requests) <= 6000
    assert "page 0: " + "letters " * 100 not in text_of(requests[-1])
    assert "page 39: " + "letters " * 100 in text_of(requests[-1])
    rows = client.session("s-1").compactions()
    light = [row for row in rows if row.strategy == "tool results cleared"]
    assert light and len(light) < 10, "one row where it begins, and one when it has moved on"
    assert [(row.summary, row.exam_score) for row in light] == [(None, None)] * len(light)
    assert all(row.after < row.through and row.tokens_after < row.tokens_before for row in light)
    assert [row.after for row in light[1:]] == [row.through for row in light[:-1]]
    assert client.session("s-1").read().compactions == len(rows)
    assert client.session("s-1").search("page 0:"), "the originals stay"


def test_what_waits_stands_between_the_recent_turns_and_the_current_input(
    client: AgentClient, place: Place, hire: Hire
) -> None:
    hire(AGENT)
    client.enqueue("planner", "an earlier turn", session="s-1").result(timeout=30)
    with psycopg.connect(place.url) as connection:
        client.enqueue("planner", "the current one", session="s-1", connection=connection)
        last = client.enqueue("planner", "the one that waits", session="s-1", connection=connection)
    last.result(timeout=30)
    request = next(sent for sent in place.world("sent") if "arrived meanwhile" in text_of(sent))
    text = text_of(request)
    order = [text.index(part) for part in ("an earlier turn", "the one that waits", "the current one")]
    assert order == sorted(order)
    assert "arrived meanwhile" not in text_of(place.world("sent")[-1])


def test_resuming_costs_a_fifth_of_the_whole_history_at_most(client: AgentClient, place: Place, hire: Hire) -> None:
    doomed = hire(FAST)
    with psycopg.connect(place.url) as connection:
        for turn in range(200):
            client.enqueue("planner", f"turn {turn}: " + "words " * 30, session="s-1", connection=connection)
        task = client.enqueue("planner", "plan it", session="s-1", connection=connection)
    eventually(lambda: place.world("ran"))
    doomed.kill()
    before = place.world("sent")
    (place.folder / "open").write_text("")
    hire(FAST)
    assert task.result(timeout=60) == "the harbour stands"
    resumed = place.world("sent")[len(before)]
    assert resumed["tokens"] <= 0.2 * before[-1]["tokens"]
    assert "turn 199" in text_of(resumed)
    assert "build the harbour" in text_of(resumed)


def test_a_message_larger_than_the_window_is_clamped_with_a_note(client: AgentClient, place: Place, hire: Hire) -> None:
    hire(FAST, context_window=2000)
    task = client.enqueue("planner", "start " + "x" * 40_000 + " end", session="s-1")
    assert task.result(timeout=30).startswith("noted: start")
    [request] = place.world("sent")
    assert request["tokens"] <= 2000
    assert "characters are left out here; search_history finds the whole of it" in text_of(request)
    assert len(client.session("s-1").search("end")) >= 1


def test_a_pending_approval_survives_compaction(client: AgentClient, place: Place, hire: Hire) -> None:
    hire("tests.fast:asks", context_window=1500)
    task = client.enqueue("asks", "erase the disk", session="s-1")
    assert task.settled_status(timeout=30) == "waiting"
    for turn in range(40):
        client.enqueue("asks", f"hello {turn} " + "words " * 30, session="s-1").result(timeout=30)
    assert client.session("s-1").read().compactions >= 1
    [question] = client.session("s-1").questions()
    client.approve(task.id, question.call_id)
    assert task.result(timeout=30) == "erase: erased"
    assert len(place.world("world")) == 1


def test_a_provider_that_finds_a_request_too_long_gets_a_shorter_one(
    client: AgentClient, place: Place, hire: Hire
) -> None:
    hire("tests.fast:strict", context_window=20_000)
    for turn in range(30):
        answer = client.enqueue("strict", f"turn {turn} " + "words " * 40, session="s-1").result(timeout=30)
        assert answer.startswith("fits")
    assert client.session("s-1").read().compactions >= 1


def interrupt(client: AgentClient, place: Place, hire: Hire, **settings: object) -> None:
    """One task in the middle of its plan, killed and gone on with."""
    doomed = hire(AGENT, **settings)
    task = client.enqueue("planner", "plan it", session="s-1")
    eventually(lambda: place.world("ran"))
    doomed.kill()
    (place.folder / "open").write_text("")
    hire(AGENT, **settings)
    assert task.result(timeout=30) == "the harbour stands"


def test_the_agents_model_adds_to_the_handoff_what_the_facts_leave_out(
    client: AgentClient, place: Place, hire: Hire
) -> None:
    interrupt(client, place, hire, handoff_seconds=10)
    handoff = eventually(lambda: (row := client.session("s-1").handoff()) and row.document["briefing"] and row)
    assert "## In the agent's own words\n\nI was waiting at the gate" in handoff.markdown
    assert handoff.document["working_on"] == "build the harbour", "the facts stay"


def test_a_model_that_has_no_words_leaves_the_facts_as_they_are(
    client: AgentClient, place: Place, hire: Hire, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_SCRIBE", "fails")
    interrupt(client, place, hire, handoff_seconds=10)
    improved = "SELECT output FROM dbos.operation_outputs WHERE function_name = 'handoff.improve'"
    assert eventually(lambda: db.execute(improved).fetchall()) == [("false",)]
    handoff = client.session("s-1").handoff()
    assert handoff is not None and handoff.document["briefing"] is None
    assert handoff.document["working_on"] == "build the harbour"


def test_a_state_that_does_not_fit_the_window_marks_the_session_and_is_told(
    client: AgentClient, place: Place, hire: Hire, db: psycopg.Connection
) -> None:
    worker = hire(FAST)
    for rule in range(12):
        client.enqueue("planner", f"You must never use stone number {rule}: " + "very bad " * 40, session="s-1")
    task = client.enqueue("planner", "plan it", session="s-1")
    eventually(lambda: place.world("ran"))
    assert client.session("s-1").read().coherence is None
    worker.kill()
    (place.folder / "open").write_text("")
    hire(FAST, context_window=900)
    task.result(timeout=30)
    seen = client.session("s-1").read()
    assert seen.coherence is not None and seen.coherence < 0.7
    assert "no room for: constraint" in str(seen.coherence_note)
    assert [notice.kind for notice in client.session("s-1").notices()] == ["crash", "incoherent"]
    assert "coherence.lost" in [event.kind for event in client.session("s-1").events()]


def test_the_notebook_can_be_switched_off(client: AgentClient, db: psycopg.Connection, hire: Hire) -> None:
    tools = "SELECT tools ? 'update_plan' FROM agent.agents WHERE name = 'echo'"
    worker = hire("tests.agents:echo")
    assert db.execute(tools).fetchall() == [(True,)]
    worker.stop()
    hire("tests.agents:echo", notebook="off")
    assert db.execute(tools).fetchall() == [(False,)]
