"""Supervised mode: a service that dies is started again, one that keeps dying is left down and somebody is told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from agent.client import AgentClient
from agent.config import Settings
from agent.keeper import alert_key
from store.embedded import EmbeddedPostgres
from store.errors import TaskFailed
from tests.conftest import named
from tests.reception import Receiver
from tests.workers import PATIENCE, ROOT, Place, eventually

AGENT = "tests.agents:gate"


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Kept:
    """A keeper with its service, as `perdure worker --supervise` runs it."""

    def __init__(self, place: Place, agents: str, **settings: object) -> None:
        self._log = place.folder / "keeper.log"
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agent", "worker", "--supervise"],
                cwd=ROOT, env=place.environment([agents], **settings), stdout=subprocess.PIPE, stderr=log,
                text=True, start_new_session=True,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text()

    def await_ready(self) -> str:
        """The address, once the next life of the service is ready."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "Perdure worker is ready" in line, self.log
        return line.rsplit("http://", 1)[1].split("/")[0]

    def children(self) -> list[psutil.Process]:
        return [child for child in psutil.Process(self.process.pid).children() if lives(child)]

    def kill_child(self) -> float:
        """When it was killed."""
        [child] = self.children()
        child.kill()
        return time.monotonic()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def dismiss(self) -> None:
        if self.process.poll() is None:
            left = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            for child in left:
                child.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


Keep = Callable[..., Kept]


@pytest.fixture
def keep(place: Place) -> Iterator[Keep]:
    """Starts keepers: `keep("tests.agents:gate")`."""
    started: list[Kept] = []

    def start(agents: str = AGENT, **settings: object) -> Kept:
        started.append(Kept(place, agents, **settings))
        return started[-1]

    yield start
    for kept in started:
        kept.dismiss()


def endings(db: psycopg.Connection) -> list[str | None]:
    return [row[0] for row in db.execute("SELECT ended FROM agent.workers ORDER BY started_at").fetchall()]


def test_a_service_that_keeps_dying_is_left_down_with_an_alert_and_goes_on_when_started_by_hand(
    client: AgentClient, db: psycopg.Connection, place: Place, keep: Keep
) -> None:
    settings = {"backoff_seconds": "0.2,0.4,0.6,0.8", "crash_limit": 4}
    kept = keep(**settings)
    kept.await_ready()
    for wait in (0.2, 0.4, 0.6, 0.8):
        died = kept.kill_child()
        eventually(lambda: kept.children() and f"started again in {wait:g} s" in kept.log)  # noqa: B023
        assert time.monotonic() - died >= wait
        kept.await_ready()
        assert time.monotonic() - died >= wait
    kept.kill_child()

    assert kept.process.wait(PATIENCE) == 1

    assert kept.log.count("started again in") == 4
    assert "error: Perdure on" in kept.log
    [alert] = client.alerts()
    assert "died 5 times within 60 minutes, the last time: killed by SIGKILL" in alert.what
    assert "now stays down" in alert.did
    assert "perdure worker --supervise" in alert.advice
    assert endings(db) == ["killed by SIGKILL"] * 5
    task = client.enqueue("gate", "go")
    (place.folder / "open").write_text("")

    again = keep(**settings)
    again.await_ready()

    assert task.result(timeout=30) == "passed"
    assert client.alerts() == [], "resolved by the start"
    assert again.stop() == 0


def key_of(place: Place, home: str | None = None, port: int = 0) -> str:
    return alert_key(Settings(home=Path(home or place.folder), port=port))


def test_the_last_alert_reaches_the_outside_though_nobody_is_left_and_only_once(
    client: AgentClient, db: psycopg.Connection, keep: Keep, receiver: Receiver, told: dict[str, object]
) -> None:
    receiver.refuse = 1
    kept = keep(crash_limit=1, **told)
    for _ in range(2):
        kept.await_ready()
        kept.kill_child()
    assert kept.process.wait(PATIENCE) == 1
    [alert] = client.alerts()
    assert alert.delivered_at is not None
    [(identity, message)] = receiver.received
    assert (identity, message["type"]) == (f"alert-{alert.alert_id}-raised", "alert.raised")
    assert "now stays down" in message["data"]["did"]

    keep(crash_limit=1, **told).await_ready()

    sent = "SELECT status FROM dbos.workflow_status WHERE workflow_uuid LIKE 'alert:%'"
    eventually(lambda: db.execute(sent).fetchall() == [("SUCCESS",)] * 2)
    told_once = [f"alert-{alert.alert_id}-raised", f"alert-{alert.alert_id}-resolved"]
    assert [identity for identity, _ in receiver.received] == told_once, "the worker does not send the first again"


def test_a_restart_by_the_keeper_resolves_nothing(
    client: AgentClient, db: psycopg.Connection, place: Place, keep: Keep
) -> None:
    kept = keep()
    kept.await_ready()
    db.execute("SELECT agent.raise_alert(%s, 'it died', 'nothing', 'help it')", [key_of(place)])
    kept.kill_child()
    kept.await_ready()
    assert [alert.what for alert in client.alerts()] == ["it died"]


def test_a_start_by_hand_resolves_its_own_alert_and_nobody_elses(
    client: AgentClient, db: psycopg.Connection, place: Place, keep: Keep
) -> None:
    db.execute("SELECT agent.raise_alert(%s, 'it died', 'nothing', 'help it')", [key_of(place)])
    db.execute("SELECT agent.raise_alert(%s, 'another died', 'nothing', 'help it')", [key_of(place, home="/elsewhere")])
    db.execute("SELECT agent.raise_alert(%s, 'a third died', 'nothing', 'help it')", [key_of(place, port=8081)])
    keep().await_ready()
    assert {alert.what for alert in client.alerts()} == {"another died", "a third died"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_everybody_is_one_planned_stop(
    client: AgentClient, db: psycopg.Connection, place: Place, keep: Keep, number: signal.Signals
) -> None:
    kept = keep(drain_seconds=30)
    kept.await_ready()
    task = client.enqueue("gate", "go")
    eventually(lambda: place.world("ran"))
    os.killpg(kept.process.pid, number)
    eventually(lambda: client.living_workers()[0].state == "draining")
    os.killpg(kept.process.pid, number)
    (place.folder / "open").write_text("")

    assert kept.process.wait(PATIENCE) == 0

    assert task.status() == "done"
    assert db.execute("SELECT state, ended FROM agent.workers").fetchall() == [("stopped", None)]
    assert kept.log.count("stopped as planned") == 1


def test_a_stop_before_the_service_is_ready_is_planned_too(keep: Keep) -> None:
    kept = keep()
    eventually(kept.children)
    assert kept.stop() == 0


def test_a_stop_is_not_lost_on_a_service_that_begins_anew(client: AgentClient, place: Place, keep: Keep) -> None:
    kept = keep("tests.agents:busy", stall_seconds=1.5)
    kept.await_ready()
    client.enqueue("busy", "go")
    eventually(lambda: place.world("ran"))
    assert kept.stop() == 0
    assert "has blocked the event loop" in kept.log, "the first signal came while it could not hear"


@pytest.mark.parametrize("wrong", [{"port": "many"}, {"agents": "nope:nope"}])
def test_a_start_that_cannot_work_is_not_tried_again(keep: Keep, wrong: dict[str, str]) -> None:
    kept = keep(**wrong) if "agents" not in wrong else keep(wrong["agents"])
    assert kept.process.wait(PATIENCE) == 1
    first, second = kept.log.splitlines()
    assert first.startswith("perdure: ")
    assert second.startswith("Try: ")


def test_an_end_that_nobody_asked_for_is_a_crash_whatever_its_exit_status(
    client: AgentClient, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_EXIT", "0")
    kept = keep("tests.agents:poison", backoff_seconds="600")
    kept.await_ready()
    client.enqueue("poison", "leave now")
    eventually(lambda: "the service died (exit status 0, without having been asked to stop): crash 1" in kept.log)
    assert kept.stop() == 0


def test_a_stop_while_waiting_ends_at_once(keep: Keep) -> None:
    kept = keep(backoff_seconds="600")
    kept.await_ready()
    kept.kill_child()
    eventually(lambda: "started again in 600 s" in kept.log)
    kept.process.send_signal(signal.SIGTERM)
    assert kept.process.wait(5) == 0


def test_a_service_that_takes_too_much_memory_is_ended_and_started_again(
    client: AgentClient, db: psycopg.Connection, keep: Keep
) -> None:
    kept = keep("tests.agents:poison", memory_mb=600, isolation_memory_mb=300)
    kept.await_ready()
    client.enqueue("poison", "devour it all", session="greedy")
    kept.await_ready()
    assert "the service died (it used more than 600 MB of memory)" in kept.log
    eventually(lambda: "it used more than 600 MB of memory" in endings(db))
    assert client.enqueue("poison", "are you there?", session="other").result(timeout=60) == "answered: are you there?"


def test_a_tool_that_holds_up_every_thread_is_found_from_outside_and_set_aside_as_a_hang(
    client: AgentClient, place: Place, db: psycopg.Connection, keep: Keep
) -> None:
    kept = keep("tests.agents:stuck", stall_seconds=1.5, isolate_after=1)
    kept.await_ready()
    task = client.enqueue("stuck", "grips for ever", session="s-1")
    following = client.enqueue("stuck", "still there?", session="s-1")
    eventually(lambda: place.world("ran"))

    kept.await_ready()

    assert "the service died (no sign of life for 3.5 s" in kept.log
    assert " in grips" in kept.log, "with the stack that holds it up"
    assert client.enqueue("stuck", "quick", session="s-2").result(timeout=30) == "answered: quick"
    with pytest.raises(TaskFailed, match="hang: it held up its worker, alone in a process of its own"):
        task.result(timeout=60)
    assert following.result(timeout=30) == "answered: still there?"
    [letter] = client.dead_letters()
    assert letter.evidence["reason"] == "hang"
    assert letter.evidence["tool"] == "grips"
    assert "no sign of life" in letter.evidence["exit"]
    assert [line["what"] for line in place.world("ran")] == ["grips"] * 2, "once beside others, once alone"
    assert kept.log.count("the service died") == 1, "the trial harmed nobody"
    assert db.execute("SELECT role, hung FROM agent.workers ORDER BY started_at").fetchall() == [
        ("worker", True), ("worker", False), ("isolated", True)
    ]  # fmt: skip
    assert kept.stop() == 0


def test_a_database_that_is_away_does_not_keep_the_service_down(
    server: EmbeddedPostgres, db: psycopg.Connection, keep: Keep
) -> None:
    kept = keep(backoff_seconds="0.2", crash_limit=1)
    kept.await_ready()
    with psycopg.connect(named(server.url, "postgres"), autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {db.info.dbname} ALLOW_CONNECTIONS false")
        kept.kill_child()
        eventually(lambda: "Postgres cannot be reached; the service is started again once it can" in kept.log)
        admin.execute(f"ALTER DATABASE {db.info.dbname} ALLOW_CONNECTIONS true")
    kept.await_ready()
    assert kept.log.count("the service is started again once it can") == 1
    assert kept.log.count("the service died") == 1, "and one is all that would have been put up with"
    assert kept.stop() == 0


def test_systemd_hears_from_the_service_and_while_there_is_none_from_the_keeper(
    keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(f"{folder}/n")
        channel.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", f"{folder}/n")
        monkeypatch.setenv("WATCHDOG_USEC", "1000000")
        kept = keep(backoff_seconds="600")
        kept.await_ready()
        assert channel.recv(100) == b"READY=1"
        kept.kill_child()
        eventually(lambda: "started again in 600 s" in kept.log)
        assert [channel.recv(100) for _ in range(5)] == [b"WATCHDOG=1"] * 5


def test_without_its_keeper_the_service_goes_on_and_holds_its_port(keep: Keep) -> None:
    kept = keep()
    address = kept.await_ready()
    [orphan] = kept.children()
    kept.process.kill()
    kept.process.wait()
    try:
        assert httpx.get(f"http://{address}/readyz").status_code == 200
        second = keep(port=address.rsplit(":", 1)[1])
        assert second.process.wait(PATIENCE) == 1
        assert "cannot be listened on" in second.log
    finally:
        orphan.kill()


def test_the_keeper_carries_nothing_of_the_service() -> None:
    looked = subprocess.run(
        [sys.executable, "-c", "import agent.cli, agent.keeper, sys; print(*sys.modules)"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    carried = {name.split(".")[0] for name in looked.stdout.split()} | set(looked.stdout.split())
    assert not carried & {"dbos", "pydantic_ai", "fastapi", "uvicorn", "sqlalchemy", "agent.service"}
