"""Agents of every shape Pydantic AI allows work unchanged."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from agent.client import AgentClient
from store.errors import TaskFailed
from tests.workers import Place, Worker

Hire = Callable[..., Worker]


def test_output_validators_run(client: AgentClient, hire: Hire) -> None:
    hire("tests.agents:validated")
    assert client.enqueue("validated", "you").result(timeout=30) == "heard you, validated"


def test_a_toolset_made_at_run_time_works(client: AgentClient, hire: Hire) -> None:
    hire("tests.agents:dynamic")
    assert client.enqueue("dynamic", "go").result(timeout=30) == "got something"


def test_an_output_function_never_runs_twice_silently(client: AgentClient, place: Place, hire: Hire) -> None:
    (place.folder / "die").write_text("")
    doomed = hire("tests.agents:mailer")
    task = client.enqueue("mailer", "go")
    assert doomed.process.wait(30) == -9
    hire("tests.agents:mailer")
    with pytest.raises(TaskFailed, match="outcome of the output function send_mail is unknown"):
        task.result(timeout=30)
    assert len(place.world("ran")) == 1
    assert [doubt.tool for doubt in client.doubts()] == ["send_mail"]
    assert client.enqueue("mailer", "again").result(timeout=30) == "mailed ana"


def test_a_database_error_of_the_users_own_code_fails_the_task_once(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    hire("tests.agents:faulty")
    with pytest.raises(TaskFailed, match="NoResultFound: no such customer"):
        client.enqueue("faulty", "hi").result(timeout=30)
    assert db.execute("SELECT count(*) FROM agent.journal WHERE kind = 'task.resumed'").fetchall() == [(0,)]
