"""Sessions are the user's: they wait, are steered, handed to people, branch, and end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from agent.client import AgentClient
from store.errors import Conflict, InvalidInput, NotFound, TaskFailed
from tests.rows import every_row
from tests.workers import Place, Worker, eventually

Hire = Callable[..., Worker]
AGENT = "tests.agents:companion"
DEAFEN = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND query LIKE '%LISTEN perdure_wish%' AND pid <> pg_backend_pid()"
)


def sent(place: Place) -> list[str]:
    """What each request said, as far as a provider gets to see it."""
    return [
        json.dumps([message["parts"] for message in line["messages"]], ensure_ascii=False)
        for line in place.world("sent")
    ]


def let_through(place: Place) -> None:
    (place.folder / "open").write_text("")


def test_a_paused_session_accepts_and_runs_nothing_until_it_is_resumed(
    client: AgentClient, place: Place, hire: Hire
) -> None:
    worker = hire(AGENT)
    task = client.enqueue("companion", "gate then note", session="s-1")
    eventually(lambda: place.world("ran"))
    client.pause("s-1")
    later = client.enqueue("companion", "hello", session="s-1")
    let_through(place)
    eventually(lambda: task.status() == "queued")
    assert client.session("s-1").state == "paused"
    assert client.enqueue("companion", "hello", session="s-2").result(timeout=30) == "heard hello"
    assert later.status() == "queued"
    assert [line["what"] for line in place.world("ran")] == ["gate"], "the next effect was not begun"
    worker.kill()
    hire(AGENT)
    client.resume("s-1")
    assert task.result(timeout=30) == "gate then note: done"
    assert later.result(timeout=30) == "heard hello"
    assert [line["what"] for line in place.world("ran")] == ["gate", "note"], "it went on from where it stood"


@pytest.mark.parametrize("wish", ["pause", "cancel", "interrupt", "pause unheard"])
def test_a_call_that_only_reads_is_not_begun_either_once_something_else_is_wanted(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Hire, wish: str
) -> None:
    worker = hire(AGENT)
    task = client.enqueue("companion", "peek thrice", session="s-1")
    eventually(lambda: [line["what"] for line in place.world("ran")] == ["peek 0"])
    match wish:
        case "pause":
            client.pause("s-1")
        case "pause unheard":
            assert db.execute(DEAFEN).fetchall() == [(True,)]
            client.pause("s-1")
        case "cancel":
            client.cancel(task.id)
        case _:
            urgent = client.enqueue("companion", "urgent", session="s-1", when_busy="interrupt")
    eventually(lambda: place.world("heard"))
    let_through(place)
    is_pause = wish.startswith("pause")
    eventually(lambda: task.status() == ("queued" if is_pause else "cancelled"))
    assert [line["what"] for line in place.world("ran")] == ["peek 0"]
    if is_pause:
        worker.kill()
        hire(AGENT)
        client.resume("s-1")
        assert task.result(timeout=30) == "peek thrice: done"
        assert [line["what"] for line in place.world("ran")] == ["peek 0", "peek 1", "peek 2"], "on from where it stood"
    elif wish == "interrupt":
        assert urgent.result(timeout=30) == "heard urgent"


def test_a_steering_message_reaches_the_running_task_once_also_across_a_kill(
    client: AgentClient, place: Place, hire: Hire
) -> None:
    worker = hire(AGENT)
    task = client.enqueue("companion", "gate then note", session="s-1")
    eventually(lambda: place.world("ran"))
    for _ in range(2):
        words = client.enqueue("companion", "mind the step", session="s-1", when_busy="steer", idempotency_key="k")
        assert words.id == task.id
    (place.folder / "die").write_text("")  # the worker dies while the model has the request that brings the words
    let_through(place)
    worker.process.wait(30)
    hire(AGENT)
    assert task.result(timeout=30) == "gate then note: done"
    requests = sent(place)
    assert [request.count("mind the step") for request in requests] == [0, 1, 1, 1], (
        "at its place, once in each request"
    )
    stored = json.dumps([row.message for row in client.session("s-1").messages()])
    assert stored.count("mind the step") == 1
    client.enqueue("companion", "hello", session="s-1").result(timeout=30)
    assert sent(place)[-1].count("mind the step") == 1
    kinds = [event.kind for event in client.session("s-1").events()]
    assert kinds.count("steer.accepted") == kinds.count("steer.delivered") == 1


def test_steering_that_comes_too_late_is_a_task_of_its_own(client: AgentClient, place: Place, hire: Hire) -> None:
    hire(AGENT)
    first = client.enqueue("companion", "slow answer", session="s-1")
    eventually(lambda: place.world("sent"))
    client.enqueue("companion", "by the way", session="s-1", when_busy="steer")
    let_through(place)
    assert first.result(timeout=30) == "slow answer: at last"
    [_, second] = eventually(lambda: (rows := client.session("s-1").tasks()) and len(rows) == 2 and rows)
    assert client.task(second.task_id).result(timeout=30) == "heard by the way"


def test_an_interrupting_message_ends_the_running_task_and_runs_next(
    client: AgentClient, place: Place, hire: Hire
) -> None:
    hire(AGENT)
    first = client.enqueue("companion", "gate then note", session="s-1")
    queued = client.enqueue("companion", "queued", session="s-1")
    eventually(lambda: place.world("ran"))
    urgent = client.enqueue("companion", "urgent", session="s-1", when_busy="interrupt")
    let_through(place)
    assert urgent.result(timeout=30) == "heard urgent"
    assert queued.result(timeout=30) == "heard queued"
    with pytest.raises(TaskFailed, match="is cancelled: interrupted by a newer message"):
        first.result(timeout=5)
    started = [event.task_id for event in client.session("s-1").events() if event.kind == "task.started"]
    assert started == [first.id, urgent.id, queued.id]
    last = place.world("sent")[-1]["messages"]
    calls = {part["tool_call_id"] for message in last for part in message["parts"] if part["part_kind"] == "tool-call"}
    answered = {
        part["tool_call_id"] for message in last for part in message["parts"] if part["part_kind"] == "tool-return"
    }
    assert calls and calls == answered, "no orphan call is left"
    assert "note" not in [line["what"] for line in place.world("ran")]


def test_a_task_is_cancelled_queued_running_or_waiting(client: AgentClient, place: Place, hire: Hire) -> None:
    hire(AGENT)
    running = client.enqueue("companion", "gate then note", session="s-1")
    queued = client.enqueue("companion", "queued", session="s-1")
    eventually(lambda: place.world("ran"))
    client.cancel(queued.id, reason="no longer wanted")
    assert (queued.status(), queued.read().error) == ("cancelled", "no longer wanted")
    client.cancel(running.id)
    let_through(place)
    assert running.settled_status(timeout=30) == "cancelled"
    asking = client.enqueue("companion", "ask me", session="s-1")
    assert asking.settled_status(timeout=30) == "waiting"
    client.cancel(asking.id)
    assert asking.status() == "cancelled" and client.session("s-1").questions() == []
    done = client.enqueue("companion", "hello", session="s-1")
    done.result(timeout=30)
    with pytest.raises(Conflict, match="has ended"):
        client.cancel(done.id)


def test_an_agent_asks_and_a_person_answers(client: AgentClient, place: Place, hire: Hire) -> None:
    hire(AGENT)
    task = client.enqueue("companion", "ask me", session="s-1")
    assert task.settled_status(timeout=30) == "waiting"
    [question] = task.questions()
    assert (question.kind, question.tool, question.reason) == ("question", "ask_user", "Which colour?")
    assert client.enqueue("companion", "hello", session="s-1").result(timeout=30) == "heard hello"
    with pytest.raises(Conflict, match="is a question"):
        client.approve(task.id, question.call_id)
    client.answer(task.id, question.call_id, "green")
    assert task.result(timeout=30) == "you said green"


def test_an_approval_with_other_arguments_a_denial_and_an_expiry(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Hire
) -> None:
    hire(AGENT)
    results: dict[str, Any] = {}
    for how in ("edited", "denied", "expired"):
        task = client.enqueue("companion", "risk it", session=how)
        assert task.settled_status(timeout=30) == "waiting"
        [question] = task.questions()
        assert question.expires_at is not None
        if how == "edited":
            client.approve(task.id, question.call_id, arguments={"amount": 5})
        elif how == "denied":
            client.deny(task.id, question.call_id, reason="too much")
        else:
            db.execute("UPDATE agent.approvals SET expires_at = now() WHERE task_id = %s", [task.id])
        results[how] = task.result(timeout=30)
    assert results["edited"] == "risked 5"
    assert "too much" in results["denied"]
    assert "Nobody approved this call: nobody answered in time" in results["expired"]
    assert [line["what"] for line in place.world("ran")] == ["risk 5"], "once, with the other arguments"
    assert "approval.expired" in [event.kind for event in client.session("expired").events()]


def test_a_person_takes_over_answers_and_gives_it_back_with_a_note(
    client: AgentClient, place: Place, hire: Hire
) -> None:
    hire(AGENT)
    task = client.enqueue("companion", "hand it over", session="s-1")
    assert task.settled_status(timeout=30) == "waiting"
    client.take_over("s-1", "ana")
    waiting = client.enqueue("companion", "are you a person?", session="s-1")
    with pytest.raises(Conflict, match="not in the hands of 'bob'"):
        client.say("s-1", "bob", "hello")
    client.say("s-1", "ana", "Yes, I am Ana.")
    assert waiting.status() == "queued"
    client.give_back("s-1", note="the customer gets a refund")
    assert waiting.result(timeout=30) == "heard are you a person?"
    assert task.result(timeout=30) == "back: the customer gets a refund"
    text = sent(place)[-1]
    assert "Yes, I am Ana." in text
    assert "Note from ana, who had taken over: the customer gets a refund" in text


def test_a_fork_shares_the_past_and_goes_its_own_way(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Hire
) -> None:
    hire("tests.fast:companion", context_window=3000)
    with psycopg.connect(place.url) as connection:
        for turn in range(1000):
            last = client.enqueue("companion", f"turn {turn}", session="long", connection=connection)
    assert last.result(timeout=300) == "heard turn 999"
    client.enqueue("companion", "note it", session="long").result(timeout=30)
    events = client.events(session="long", after=0)
    while len(page := client.events(session="long", after=events[-1].seq)):
        events += page
    middle = [event for event in events if event.kind == "task.finished"][499].seq

    sizes = "SELECT sum(pg_column_size(t.*)) FROM agent.{} t"
    tables = (
        "sessions",
        "messages",
        "journal",
        "lineage",
        "checkpoints",
        "tasks",
        "checkpoint_versions",
        "compactions",
    )

    def stored() -> int:
        return sum(int(db.execute(sizes.format(table)).fetchall()[0][0] or 0) for table in tables)

    before = stored()
    [effect] = client.effects_after("long", middle)
    assert effect.tool == "note", "what happened outside is said first"
    branch = client.fork("long", at=middle, session="branch")
    assert stored() - before < 10_000
    assert branch.read().parent_session_id == "long"
    ran = len(place.world("ran"))
    assert (
        client.enqueue("companion", "from the branch", session="branch").result(timeout=30) == "heard from the branch"
    )
    assert client.enqueue("companion", "from the stem", session="long").result(timeout=30) == "heard from the stem"
    texts = [json.dumps(row.message) for row in branch.messages()]
    assert "turn 499" in texts[-4] and "from the branch" in texts[-2], "the past up to there, then its own way"
    assert not any("turn 500" in text or "from the stem" in text for text in texts)
    assert not any("from the branch" in json.dumps(row.message) for row in client.session("long").messages())
    assert branch.search("turn 499") and not branch.search("turn 500")
    assert len(place.world("ran")) == ran, "effects of the shared past never run again"
    twig = client.fork("branch", session="twig")
    assert client.enqueue("companion", "from the twig", session="twig").result(timeout=30) == "heard from the twig"
    assert len(twig.messages()) == len(branch.messages()) + 2


def test_a_rewind_moves_back_and_keeps_what_was_undone_in_the_journal(
    client: AgentClient, place: Place, hire: Hire
) -> None:
    hire(AGENT)
    client.enqueue("companion", "plan the first", session="s-1").result(timeout=30)
    place_then = client.session("s-1").events()[-1].seq
    client.enqueue("companion", "plan the second", session="s-1").result(timeout=30)
    client.enqueue("companion", "note it", session="s-1").result(timeout=30)
    assert [effect.tool for effect in client.effects_after("s-1", place_then)] == ["note"]
    client.rewind("s-1", to=place_then)
    assert len(client.session("s-1").messages()) == 4
    client.enqueue("companion", "and now?", session="s-1").result(timeout=30)
    text = sent(place)[-1]
    assert "plan the first" in text and "plan the second" not in text and "note it" not in text
    assert "goal the first" in text and "goal the second" not in text, "the checkpoint is that of then"
    kinds = [event.kind for event in client.session("s-1").events()]
    assert kinds.count("task.finished") == 4 and "session.rewound" in kinds, "nothing vanishes from the journal"
    assert [line["what"] for line in place.world("ran")] == ["note"], "no effect runs again"
    with pytest.raises(InvalidInput, match="has places 0 to"):
        client.rewind("s-1", to=10_000)


def test_a_deleted_session_leaves_no_row_behind(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Hire
) -> None:
    worker = hire(AGENT)
    client.enqueue("companion", "plan the secret-word", session="doomed-session").result(timeout=30)
    task = client.enqueue("companion", "gate then note", session="doomed-session")
    eventually(lambda: place.world("ran"))
    with pytest.raises(Conflict, match="is running"):
        client.delete_session("doomed-session")
    worker.kill()
    let_through(place)
    hire(AGENT)
    task.result(timeout=30)
    eventually(client.session("doomed-session").handoff)
    fork = client.fork("doomed-session", session="fork-of-it")
    with pytest.raises(Conflict, match="forks"):
        client.delete_session("doomed-session")
    client.delete_session(fork.id)
    client.delete_session("doomed-session")
    with pytest.raises(NotFound):
        client.session("doomed-session").read()
    left = [row for row in every_row(db) if "doomed-session" in row or "secret-word" in row or task.id in row]
    assert left == []


def test_a_session_travels_as_one_document(client: AgentClient, hire: Hire) -> None:
    hire(AGENT)
    client.enqueue("companion", "plan the journey", session="s-1", user="ana").result(timeout=30)
    client.enqueue("companion", "ask me", session="s-1", user="ana").settled_status(timeout=30)
    document = json.loads(json.dumps(client.export_session("s-1")))
    taken_in = client.import_session(document, session="s-2", user="bob")
    assert [row.message for row in taken_in.messages()] == [row.message for row in client.session("s-1").messages()]
    assert taken_in.read().user_id == "bob"
    answer = client.enqueue("companion", "hello", session="s-2", user="bob").result(timeout=30)
    assert answer == "heard hello"
    with pytest.raises(Conflict, match="already a session"):
        client.import_session(document, session="s-2")
    with pytest.raises(InvalidInput, match="no exported session"):
        client.import_session({"hello": 1})


def test_sessions_are_found_by_user_agent_state_and_text_and_can_be_closed(client: AgentClient, hire: Hire) -> None:
    hire(AGENT, "tests.agents:echo", session_days="0.00001")
    client.enqueue("companion", "a walrus", session="s-1", user="ana").result(timeout=30)
    client.enqueue("echo", "a carpenter", session="s-2", user="ana").result(timeout=30)
    client.enqueue("companion", "ask me", session="s-3", user="bob").settled_status(timeout=30)

    def found(**filters: str) -> set[str]:
        return {row.session_id for row in client.sessions(**filters)}  # type: ignore[arg-type]

    assert found(user="ana") == {"s-1", "s-2"}
    assert found(agent="companion") == {"s-1", "s-3"}
    assert found(state="waiting") == {"s-3"}
    assert found(text="WALRUS") == {"s-1"} and found(text="%") == set()
    client.close_session("s-1")
    with pytest.raises(Conflict, match="is closed"):
        client.enqueue("companion", "more", session="s-1", user="ana")
    client.reopen("s-1")
    assert client.enqueue("companion", "more", session="s-1", user="ana").result(timeout=30) == "heard more"
