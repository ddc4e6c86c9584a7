"""What systemd hears from a service: that it is ready, that it lives, that it stops."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator

import pytest

from agent import systemd
from tests.workers import PATIENCE, Worker


@pytest.fixture(params=["file", "abstract"])
def channel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Listens where NOTIFY_SOCKET says, in both of its forms."""
    if request.param == "abstract" and sys.platform != "linux":
        pytest.skip("abstract sockets are Linux")
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        name = f"{folder}/n" if request.param == "file" else f"@perdure-{uuid.uuid4().hex}"
        listening.bind(name.replace("@", "\0"))
        listening.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield listening


def hear(channel: socket.socket) -> str:
    return channel.recv(100).decode()


def test_a_service_says_that_it_is_ready_that_it_lives_and_that_it_stops(
    channel: socket.socket, hire: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    worker = hire("tests.agents:echo")
    assert hear(channel) == "READY=1"
    assert hear(channel) == "WATCHDOG=1"
    os.kill(worker.pid, signal.SIGSTOP)
    with contextlib.suppress(TimeoutError):
        channel.settimeout(0.5)
        while True:
            hear(channel)
    os.kill(worker.pid, signal.SIGCONT)
    channel.settimeout(PATIENCE)
    assert hear(channel) == "WATCHDOG=1"
    assert worker.stop() == 0
    said = {hear(channel)}
    while "STOPPING=1" not in said:
        said.add(hear(channel))
    assert said <= {"WATCHDOG=1", "STOPPING=1"}


def test_a_worker_that_is_not_healthy_gives_no_pulse(channel: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    looks = iter([True, False, False, True])
    pulse = systemd.Pulse(lambda: next(looks, False))
    pulse.start()
    assert [hear(channel), hear(channel)] == ["WATCHDOG=1"] * 2
    channel.settimeout(0.1)
    with pytest.raises(TimeoutError):
        hear(channel)
    pulse.stop()
    pulse.join()


@pytest.mark.parametrize("address", [None, "/nowhere/at/all"])
def test_without_systemd_nothing_happens(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    systemd.notify("READY=1")


@pytest.mark.parametrize(("given", "seconds"), [("", None), ("0", None), ("x", None), ("60000000", 30.0)])
def test_the_pulse_is_twice_as_quick_as_asked_for(
    given: str, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", given)
    assert systemd.pulse_seconds() == seconds
