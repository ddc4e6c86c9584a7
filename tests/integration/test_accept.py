"""Accepting a task is one transaction: everything about it exists, or nothing does."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from agent.client import AgentClient
from store.errors import Conflict, InvalidInput, NotAllowed, NotFound, TooLarge
from tests.workers import ROOT, Place, Worker

pytestmark = pytest.mark.usefixtures("echo_is_known")


@pytest.fixture
def echo_is_known(db: psycopg.Connection) -> None:
    db.execute("INSERT INTO agent.agents (name) VALUES ('echo'), ('other')")


def test_one_transaction_writes_session_task_journal_and_workflow(client: AgentClient, db: psycopg.Connection) -> None:
    task = client.enqueue("echo", "hi there", session="s-1", user="ana")
    assert (task.session_id, task.status()) == ("s-1", "queued")
    assert everything(db) == {"tasks": 1, "sessions": 1, "journal": 1, "workflow_status": 1}
    [xids] = db.execute(
        "SELECT s.xmin, t.xmin, j.xmin FROM agent.tasks t JOIN agent.sessions s USING (session_id)"
        " JOIN agent.journal j USING (task_id)"
    ).fetchall()
    assert len(set(xids)) == 1
    [event] = client.session("s-1").events()
    assert (event.kind, event.seq, event.data["input"]) == ("task.accepted", 1, "hi there")


def test_the_same_key_from_fifty_threads_is_one_task(client: AgentClient, db: psycopg.Connection) -> None:
    together = threading.Barrier(50)

    def enqueue(_: int) -> str:
        together.wait()
        return client.enqueue("echo", "hi", user="ana", idempotency_key="mail-8812").id

    with ThreadPoolExecutor(50) as threads:
        ids = set(threads.map(enqueue, range(50)))

    assert len(ids) == 1
    assert everything(db) == {"tasks": 1, "sessions": 1, "journal": 1, "workflow_status": 1}


def test_a_key_belongs_to_its_user(client: AgentClient) -> None:
    mine = client.enqueue("echo", "hi", user="ana", idempotency_key="k")
    yours = client.enqueue("echo", "hi", user="ben", idempotency_key="k")
    again = client.enqueue("echo", "something else", user="ana", idempotency_key="k")
    assert mine.id == again.id != yours.id


def test_a_rolled_back_transaction_leaves_nothing(client: AgentClient, db: psycopg.Connection, url: str) -> None:
    with psycopg.connect(url) as connection:
        client.enqueue("echo", "hi", session="s-1", connection=connection)
        connection.execute("SELECT agent.enqueue('echo', 'hi again', session_id => 's-1')")
        connection.rollback()
    assert everything(db) == {"tasks": 0, "sessions": 0, "journal": 0, "workflow_status": 0}


def test_the_callers_transaction_accepts_only_when_it_commits(
    client: AgentClient, db: psycopg.Connection, url: str
) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE orders (id int)")
        task = client.enqueue("echo", "hi", connection=connection)
        connection.execute("INSERT INTO orders VALUES (17)")
        assert everything(db)["tasks"] == 0
        connection.commit()
    assert task.status() == "queued"


def test_order_is_the_order_of_commit_and_nobody_waits(client: AgentClient, url: str) -> None:
    client.enqueue("echo", "first", session="s-1")
    with psycopg.connect(url) as slow:
        late = client.enqueue("echo", "slow", session="s-1", connection=slow)
        quick = client.enqueue("echo", "quick", session="s-1")
        assert quick.status() == "queued"
    rows = client.session("s-1").tasks()
    assert [row.input for row in rows] == ["first", "quick", "slow"]
    assert [row.seq for row in rows] == [1, 2, 3]
    assert late.read().seq == 3


def test_tasks_of_a_session_run_in_the_order_accepted(client: AgentClient, hire: Callable[..., Worker]) -> None:
    tasks = [client.enqueue("echo", f"{number}", session=f"s-{number % 3}") for number in range(60)]
    hire("tests.agents:echo")
    answers = [task.result(timeout=60) for task in tasks]
    assert answers == [f"turn {number // 3 + 1}: {number}" for number in range(60)]


def test_from_sql_alone(client: AgentClient, db: psycopg.Connection, hire: Callable[..., Worker]) -> None:
    hire("tests.agents:echo")
    row = db.execute(
        "SELECT agent.enqueue('echo', 'Refund order 17', session_id => 'acme-17', user_id => 'ana',"
        " idempotency_key => 'mail-8812')"
    ).fetchone()
    assert row is not None
    assert client.task(row[0]).result(timeout=30) == "turn 1: Refund order 17"
    assert db.execute("SELECT status, output #>> '{}' FROM agent.task_status").fetchall() == [
        ("done", "turn 1: Refund order 17")
    ]


def test_a_client_that_dies_right_after_commit_leaves_a_task_that_runs(
    client: AgentClient, place: Place, hire: Callable[..., Worker]
) -> None:
    program = (
        "import os, sys; from agent.client import AgentClient;"
        "task = AgentClient(sys.argv[1]).enqueue('echo', 'last words', session='s-1');"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, place.url], cwd=ROOT, check=False)
    assert done.returncode == -9
    hire("tests.agents:echo")
    [row] = client.session("s-1").tasks()
    assert client.task(row.task_id).result(timeout=30) == "turn 1: last words"


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"agent": "nobody", "input": "hi"}, NotFound, "no agent named 'nobody'; registered are: echo, other"),
        ({"agent": "echo", "input": ""}, InvalidInput, "input is empty"),
        ({"agent": "echo", "input": " \n\t "}, InvalidInput, "input is empty"),
        ({"agent": "echo", "input": "x" * (1024 * 1024 + 1)}, TooLarge, "1048577 bytes; at most 1048576"),
        ({"agent": "echo", "input": "hi", "session": "taken"}, NotAllowed, "belongs to another user"),
        ({"agent": "echo", "input": "hi", "session": "taken", "user": "ben"}, NotAllowed, "belongs to another user"),
        ({"agent": "other", "input": "hi", "session": "taken", "user": "ana"}, Conflict, "belongs to agent 'echo'"),
        ({"agent": "echo", "input": "hi", "session": ""}, InvalidInput, "1 to 200 characters"),
        ({"agent": "echo", "input": "hi", "session": "a\nb"}, InvalidInput, "control characters"),
        ({"agent": "echo", "input": "hi", "session": "x" * 201}, InvalidInput, "1 to 200 characters"),
        ({"agent": "echo", "input": "hi", "user": "x" * 201}, InvalidInput, "at most 200"),
        ({"agent": "echo", "input": "a\0b"}, InvalidInput, "no text"),
        ({"agent": "echo", "input": "half a pair: \ud800"}, InvalidInput, "no text"),
        ({"agent": "echo'; DROP TABLE agent.tasks; --", "input": "hi"}, NotFound, "no agent named"),
    ],
)
def test_what_is_refused_is_refused_clearly_and_leaves_nothing(
    client: AgentClient, db: psycopg.Connection, arguments: dict[str, str], error: type[Exception], says: str
) -> None:
    client.enqueue("echo", "mine", session="taken", user="ana")
    before = everything(db)
    given = dict(arguments)
    with pytest.raises(error, match=says):
        client.enqueue(given.pop("agent"), given.pop("input"), **given)
    assert everything(db) == before


def test_an_input_of_exactly_the_limit_is_accepted(client: AgentClient) -> None:
    assert client.enqueue("echo", "x" * 1024 * 1024).status() == "queued"


def everything(db: psycopg.Connection) -> dict[str, int]:
    counts = {}
    for table in ("agent.tasks", "agent.sessions", "agent.journal", "dbos.workflow_status"):
        row = db.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert row is not None
        counts[table.split(".")[1]] = row[0]
    return counts
