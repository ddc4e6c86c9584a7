"""Who is tried, who is convicted, and who waits for whom, as the store decides it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
import pytest

from agent.client import AgentClient, Task
from store import supervision, workers
from store.database import Link
from store.supervision import CrashPolicy
from store.types import AgentCard, WorkerId

POLICY = CrashPolicy(waits=(0.0,), isolate_after=1, limit=3, window_seconds=3600)
ME = WorkerId("me")
CHILD = WorkerId("child")


@pytest.fixture
def link(url: str) -> Iterator[Link]:
    with contextlib.closing(Link(url, size=1)) as made:
        made.run(workers.register_agents([AgentCard(name="echo", description=None, model=None, tools=())]))
        register(made, ME)
        yield made


def register(link: Link, worker: WorkerId) -> None:
    known = workers.register_worker(
        worker, host="here", pid=1, process=worker, version="1", agents=["echo"], beat_seconds=5
    )
    link.run(known)


def take(db: psycopg.Connection, task: Task, worker: str) -> None:
    """As when DBOS gives a task to a worker, and the worker opens it."""
    taken = (
        "UPDATE dbos.workflow_status SET status = 'PENDING', executor_id = %s, owner_xid = 'o' WHERE workflow_uuid = %s"
    )
    db.execute(taken, [worker, task.id])
    assert db.execute("SELECT agent.open_task(%s, 'o', %s)", [task.id, worker]).fetchone() != (None,)


def make_suspect(db: psycopg.Connection, task: Task) -> None:
    db.execute("UPDATE agent.tasks SET is_isolated = true, crashes = 1 WHERE task_id = %s", [task.id])
    db.execute("SELECT agent.place_session(%s)", [task.session_id])


def claim(link: Link, child: str, host: str = "here") -> bool:
    return link.run(supervision.claim_trial(WorkerId(child), host=host, version="1", beat_seconds=5))


def adopt(link: Link, *gone: str) -> None:
    link.run(workers.adopt_tasks(ME, gone, judge_silence=True, policy=POLICY))


def fall_silent(db: psycopg.Connection, worker: str, seconds: int) -> None:
    aged = "UPDATE agent.workers SET beat_at = beat_at - make_interval(secs => %s) WHERE worker_id = %s"
    db.execute(aged, [seconds, worker])


def queue_of(db: psycopg.Connection, task: Task) -> tuple[str, str]:
    """Where a task is, and whether it waits there."""
    found = db.execute("SELECT queue_name, status FROM dbos.workflow_status WHERE workflow_uuid = %s", [task.id])
    queue, status = found.fetchone() or ("", "")
    return queue, status


@pytest.fixture
def tried(client: AgentClient, db: psycopg.Connection, link: Link) -> Task:
    """A suspect that is alone in a process of its own."""
    task = client.enqueue("echo", "hello", session="s-1")
    make_suspect(db, task)
    assert claim(link, CHILD)
    register(link, CHILD)
    take(db, task, CHILD)
    return task


@pytest.mark.parametrize("gone", [[], [CHILD]])
def test_an_end_that_nobody_saw_convicts_nobody(
    client: AgentClient, db: psycopg.Connection, link: Link, tried: Task, gone: list[str]
) -> None:
    fall_silent(db, CHILD, 60)
    adopt(link, *gone)
    assert tried.read().crashes == 2
    assert client.dead_letters() == []
    assert queue_of(db, tried) == ("perdure_isolation", "ENQUEUED"), "it is tried again"


@pytest.mark.parametrize("is_hang", [True, False])
def test_an_end_that_was_seen_convicts(
    client: AgentClient, db: psycopg.Connection, link: Link, tried: Task, is_hang: bool
) -> None:
    link.run(supervision.note_end(CHILD, "it ended badly", is_hang=is_hang))
    adopt(link, CHILD)
    [letter] = client.dead_letters()
    assert letter.evidence["reason"] == ("hang" if is_hang else "crash")
    assert letter.evidence["exit"] == "it ended badly"


def test_a_process_that_ended_before_it_had_its_suspect_convicts_nobody(
    client: AgentClient, db: psycopg.Connection, link: Link
) -> None:
    task = client.enqueue("echo", "hello", session="s-1")
    make_suspect(db, task)
    assert claim(link, CHILD)
    db.execute("UPDATE dbos.workflow_status SET status = 'PENDING', executor_id = %s", [CHILD])
    link.run(supervision.note_end(CHILD, "exit status 70", is_hang=False))
    adopt(link, CHILD)
    assert client.dead_letters() == []
    assert task.status() == "queued"


def test_a_process_that_is_born_slowly_is_waited_for(client: AgentClient, db: psycopg.Connection, link: Link) -> None:
    make_suspect(db, client.enqueue("echo", "hello", session="s-1"))
    assert claim(link, CHILD)
    fall_silent(db, CHILD, 60)
    adopt(link)
    state = "SELECT state FROM agent.workers WHERE worker_id = 'child'"
    assert db.execute(state).fetchone() == ("alive",)
    assert not claim(link, "another"), "one at a time"
    fall_silent(db, CHILD, 120)
    adopt(link)
    assert db.execute(state).fetchone() == ("dead",)
    assert claim(link, "another")


def test_no_host_runs_more_than_eight_of_those_who_were_tried_and_survived(
    client: AgentClient, db: psycopg.Connection, link: Link
) -> None:
    for number in range(8):
        task = client.enqueue("echo", "hello", session=f"s-{number}")
        make_suspect(db, task)
        assert claim(link, f"child-{number}")
        register(link, WorkerId(f"child-{number}"))
        take(db, task, f"child-{number}")
        db.execute("SELECT agent.acquit(%s)", [task.id])
    make_suspect(db, client.enqueue("echo", "hello", session="s-9"))
    assert not claim(link, "child-9")
    assert claim(link, "child-9", host="elsewhere")


def test_a_task_accepted_while_a_breaker_closes_is_not_forgotten(
    client: AgentClient, url: str, db: psycopg.Connection, link: Link
) -> None:
    client.enqueue("echo", "first", session="s-1")
    db.execute("SELECT agent.open_breaker('session:s-1', 'a test', 600)")
    with psycopg.connect(url) as slow:
        task = client.enqueue("echo", "second", session="s-1", connection=slow)
        slow.execute("SET CONSTRAINTS ALL IMMEDIATE")  # it is placed behind the breaker, and not committed yet
        db.execute("SELECT agent.close_breaker('session:s-1')")
    assert queue_of(db, task) == ("perdure", "DELAYED")
    link.run(supervision.tend_breakers())
    assert queue_of(db, task) == ("perdure", "ENQUEUED")


def test_a_suspect_that_ended_otherwise_does_not_block_its_session(
    client: AgentClient, db: psycopg.Connection, link: Link
) -> None:
    suspect = client.enqueue("echo", "hello", session="s-1")
    following = client.enqueue("echo", "and then?", session="s-1")
    make_suspect(db, suspect)
    assert queue_of(db, following) == ("perdure", "DELAYED")
    cancelled = "UPDATE dbos.workflow_status SET status = 'CANCELLED' WHERE workflow_uuid = %s"
    db.execute(cancelled, [suspect.id])  # as `dbos workflow cancel` does
    link.run(supervision.tend_breakers())
    assert queue_of(db, following) == ("perdure", "ENQUEUED")


def test_the_breaker_of_a_tool_tries_one_task_and_success_frees_the_rest(
    client: AgentClient, db: psycopg.Connection, link: Link
) -> None:
    scope = "tool:echo/dial"
    db.execute("SELECT agent.open_breaker(%s, 'a test', 600)", [scope])
    held = [client.enqueue("echo", "hello", session=f"s-{number}") for number in range(3)]
    for task in held:
        take(db, task, ME)
        link.run(supervision.wait_for_tool(task.id, "o", scope))  # type: ignore[arg-type]
    assert {queue_of(db, task)[1] for task in held} == {"DELAYED"}
    db.execute("UPDATE agent.breakers SET until = clock_timestamp()")

    for _ in range(2):
        [breaker] = link.run(supervision.tend_breakers())
        assert breaker.state == "half-open"
        first, *others = [queue_of(db, task) for task in held]
        assert first == ("perdure_isolation", "ENQUEUED"), "who has waited longest"
        assert {status for _, status in others} == {"DELAYED"}

    db.execute("SELECT agent.end_trial(%s, true)", [held[0].id])
    assert link.run(supervision.tend_breakers()) == []
    assert {queue_of(db, task)[1] for task in held} == {"ENQUEUED"}
