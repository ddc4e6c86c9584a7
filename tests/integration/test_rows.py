"""Rows people can read, and what happens to values that cannot be stored."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import psycopg
import pytest

from agent.client import AgentClient
from store.errors import TaskFailed
from tests.rows import every_row
from tests.workers import ROOT, Place, Worker

Hire = Callable[..., Worker]


def test_sql_reads_tool_arguments_and_results(client: AgentClient, db: psycopg.Connection, hire: Hire) -> None:
    hire("tests.agents:steady")
    task = client.enqueue("steady", "count")
    task.result(timeout=30)
    rows = db.execute(
        "SELECT input->>'n', output::int, error FROM agent.step_log WHERE kind = 'tool' AND task_id = %s ORDER BY step",
        [task.id],
    ).fetchall()
    assert rows == [(str(n), n, None) for n in range(5)]
    models = db.execute(
        "SELECT input->'newest'->0->>'user', output->'parts'->0->>'tool_name' FROM agent.step_log"
        " WHERE kind = 'model' ORDER BY step"
    ).fetchall()
    assert models[0] == ("count", "tick")
    usage = db.execute("SELECT agent, tool, calls, failures FROM agent.tool_usage").fetchall()
    assert usage == [("steady", "tick", 5, 0)]


def test_nothing_stored_is_pickled(client: AgentClient, db: psycopg.Connection, hire: Hire) -> None:
    hire("tests.agents:steady", "tests.agents:odd")
    client.enqueue("steady", "count").result(timeout=30)
    with pytest.raises(TaskFailed):
        client.enqueue("odd", "raises").result(timeout=30)
    for table, row in every_row(db):
        assert "pickle" not in row, table
        assert "gASV" not in row, f"{table} holds a pickle"


def test_dbos_commands_show_the_same_tasks(client: AgentClient, place: Place, hire: Hire) -> None:
    hire("tests.agents:steady")
    task = client.enqueue("steady", "count")
    task.result(timeout=30)
    listed = dbos("workflow", "list", "--sys-db-url", place.url)
    assert task.id in listed
    assert '"SUCCESS"' in listed
    steps = dbos("workflow", "steps", task.id, "--sys-db-url", place.url)
    assert steps.count("steady__model.request") == 6
    assert steps.count("tool.tick") == 5


def dbos(*arguments: str) -> str:
    done = subprocess.run(
        ["dbos", *arguments], capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_result_that_cannot_be_stored_fails_the_call_and_not_the_worker(client: AgentClient, hire: Hire) -> None:
    worker = hire("tests.agents:odd")
    task = client.enqueue("odd", "opaque")
    assert "the tool opaque ran, but its result cannot be stored: Opaque has no JSON form" in task.result(timeout=30)
    [step] = [step for step in task.steps() if step.kind == "tool"]
    assert step.outcome == "failed"
    assert worker.process.poll() is None


def test_a_tool_that_raises_fails_its_task_and_the_session_goes_on(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    hire("tests.agents:odd")
    task = client.enqueue("odd", "raises", session="s-1")
    with pytest.raises(TaskFailed, match="raises raised ValueError: the disk is on fire"):
        task.result(timeout=30)
    row = task.read()
    assert (row.status, row.error) == ("failed", "ToolError: raises raised ValueError: the disk is on fire")
    assert db.execute("SELECT error FROM agent.step_log WHERE kind = 'tool'").fetchall() == [
        ("ValueError: the disk is on fire",)
    ]
    [event] = [event for event in client.session("s-1").events() if event.kind == "task.failed"]
    assert "the disk is on fire" in event.data["error"]
    assert db.execute("SELECT status FROM dbos.workflow_status").fetchall() == [("ERROR",)]
    assert "nul gave" in client.enqueue("odd", "nul", session="s-1").result(timeout=30)


def test_text_that_postgres_cannot_hold_is_kept_readable(client: AgentClient, hire: Hire) -> None:
    hire("tests.agents:odd")
    assert client.enqueue("odd", "nul").result(timeout=30) == "nul gave 'before␀after ? end'"


def test_data_that_looks_like_a_tag_stays_data(client: AgentClient, hire: Hire) -> None:
    hire("tests.agents:odd")
    answer = client.enqueue("odd", "tagged").result(timeout=30)
    assert "'$': 'os:system'" in answer
    assert "'nan': 'nan'" in answer


def test_an_agent_that_is_served_no_more_fails_its_tasks_clearly(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    db.execute("INSERT INTO agent.agents (name) VALUES ('gone')")
    hire("tests.agents:echo")
    with pytest.raises(TaskFailed, match="no worker serves an agent named 'gone'"):
        client.enqueue("gone", "hello?").result(timeout=30)
