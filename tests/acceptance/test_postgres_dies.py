"""Postgres itself is killed while tasks run. Nothing accepted is lost, and the service goes on by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.client import AgentClient
from store.embedded import EmbeddedPostgres
from tests.workers import ROOT, Place, Worker, eventually


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    embedded = EmbeddedPostgres(tmp_path / "home")
    embedded.start()
    yield embedded
    embedded.start()
    embedded.release()


def test_tasks_outlive_the_death_of_a_given_postgres(own_server: EmbeddedPostgres, tmp_path: Path) -> None:
    outlive(Place(own_server.url, tmp_path), own_server, {})


def test_the_service_restarts_its_embedded_postgres(own_server: EmbeddedPostgres, tmp_path: Path) -> None:
    place = Place(own_server.url, tmp_path)
    embedded = {"database_url": "", "home": tmp_path / "home"}
    outlive(place, None, embedded, victim=own_server)


def outlive(
    place: Place, restart: EmbeddedPostgres | None, settings: dict[str, object], victim: EmbeddedPostgres | None = None
) -> None:
    server = restart or victim
    assert server is not None
    worker = Worker.start(place, ["tests.agents:steady"], **settings)
    try:
        with AgentClient(place.url) as client:
            tasks = [client.enqueue("steady", f"task {number}").id for number in range(20)]
        for deaths in (1, 2):
            eventually(
                lambda deaths=deaths: len([line for line in place.world("ran") if line["what"] == "tick"]) > 20 * deaths
            )
            kill_postgres(server)
            if restart is not None:
                restart.revive()
        with AgentClient(place.url) as client:
            eventually(lambda: is_back(client))
            answers = [client.task(task).result(timeout=90) for task in tasks]
            assert answers == [f"task {number}: 5 ticks" for number in range(20)]
            assert {row.crashes for row in client.tasks()} == {0}
            assert client.enqueue("steady", "after").result(timeout=30) == "after: 5 ticks"
        assert worker.process.poll() is None
    finally:
        worker.dismiss()


def test_a_planned_stop_while_postgres_is_away_ends_all_the_same(own_server: EmbeddedPostgres, tmp_path: Path) -> None:
    place = Place(own_server.url, tmp_path)
    worker = Worker.start(place, ["tests.agents:gate"], drain_seconds=0)
    try:
        with AgentClient(place.url) as client:
            client.enqueue("gate", "go")
        eventually(lambda: place.world("ran"))
        kill_postgres(own_server)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(30) == 0
    finally:
        worker.dismiss()


def is_back(client: AgentClient) -> bool:
    try:
        client.sessions()
    except Exception:
        return False
    return True


def kill_postgres(server: EmbeddedPostgres) -> None:
    pid = int((server.data / "postmaster.pid").read_text().splitlines()[0])
    os.kill(pid, signal.SIGKILL)


def test_several_processes_share_the_embedded_server_and_the_last_one_stops_it(tmp_path: Path) -> None:
    home = tmp_path / "a home with spaces"
    first, second = EmbeddedPostgres(home), EmbeddedPostgres(home)
    assert first.start() == second.start()
    user = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from store.embedded import EmbeddedPostgres;"
            "EmbeddedPostgres(Path(sys.argv[1])).start(); print('up', flush=True); time.sleep(600)",
            str(home),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert user.stdout is not None
    assert user.stdout.readline() == "up\n"
    first.release()
    second.release()
    assert (home / "postgres" / "postmaster.pid").exists(), "another process still uses it"
    user.send_signal(signal.SIGKILL)
    user.wait()
    user.stdout.close()
    third = EmbeddedPostgres(home)
    third.start()
    third.release()
    assert not (home / "postgres" / "postmaster.pid").exists(), "the last one stops it"


def test_a_home_with_a_very_long_path_works(tmp_path: Path) -> None:
    embedded = EmbeddedPostgres(tmp_path / ("deep" * 20) / "er" / ("still" * 10))
    url = embedded.start()
    try:
        with AgentClient(url) as client, pytest.raises(Exception, match='relation "agent'):
            client.sessions()
    finally:
        embedded.release()
