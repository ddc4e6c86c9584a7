"""A real Postgres for all tests, a fresh database for each, and worker processes that never outlive their test."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from agent.client import AgentClient
from agent.engine import migrate as migrate_dbos
from store import schema
from store.embedded import EmbeddedPostgres
from tests.reception import SECRET, Receiver
from tests.workers import Nursery, Place, Worker


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    embedded = EmbeddedPostgres(tmp_path_factory.mktemp("server") / "home")
    embedded.start()
    yield embedded
    embedded.release()


@pytest.fixture(scope="session")
def template(server: EmbeddedPostgres) -> str:
    """A database with the whole schema, to copy from."""
    url = named(server.url, "template_of_tests")
    with psycopg.connect(named(server.url, "postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE template_of_tests")
    migrate_dbos(url)
    schema.migrate(url)
    return "template_of_tests"


@pytest.fixture
def new_database(server: EmbeddedPostgres) -> Iterator[Callable[..., str]]:
    """Makes databases that are gone after the test."""
    made: list[str] = []

    def make(template: str = "template1") -> str:
        made.append(f"test_{uuid.uuid4().hex[:12]}")
        with psycopg.connect(named(server.url, "postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {made[-1]} TEMPLATE {template}")
        return named(server.url, made[-1])

    yield make
    with psycopg.connect(named(server.url, "postgres"), autocommit=True) as connection:
        for name in made:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def url(new_database: Callable[..., str], template: str) -> str:
    return new_database(template)


@pytest.fixture
def client(url: str) -> Iterator[AgentClient]:
    with AgentClient(url) as made:
        yield made


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def place(url: str, tmp_path: Path) -> Place:
    """Where the workers of one test live: a database and a folder that stands for the outside world."""
    return Place(url, tmp_path)


@pytest.fixture
def hire(place: Place, nursery: Nursery) -> Iterator[Callable[..., Worker]]:
    """Starts worker processes: `hire("tests.agents:steady")`."""
    hired: list[Worker] = []

    def start(*agents: str, **settings: object) -> Worker:
        if "TEST_RELEASE_PATH" in os.environ:  # what is imported there is not what the nursery has
            hired.append(Worker.start(place, agents, **settings))
        else:
            hired.append(Worker.fork(nursery, place, agents, **settings))
        return hired[-1]

    yield start
    for worker in hired:
        worker.dismiss()


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Worker processes at a tenth of the price: forked from one that has everything imported."""
    started = Nursery()
    yield started
    started.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def told(receiver: Receiver) -> dict[str, object]:
    return {
        "webhook_url": receiver.url,
        "webhook_secret": SECRET,
        "webhook_retry_seconds": "0.1,0.1,0.1",
        "isolate_after": 99,
    }


def named(url: str, database: str) -> str:
    return url.replace("/perdure?", f"/{database}?")
