"""Who is judged by silence, and who is not."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from agent import breath
from agent.breath import ALIVE, ANEW, LEAVING, Ward
from tests.workers import eventually

STALL = 0.2


@pytest.fixture
def ward(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ward]:
    monkeypatch.setattr(breath, "LEAST_MARGIN_SECONDS", 0)
    made = Ward(STALL)
    yield made
    made.close()


@pytest.fixture
def silent() -> Iterator[subprocess.Popen[bytes]]:
    """A process that says nothing by itself."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def hear(ward: Ward, word: bytes) -> None:
    os.write(ward.writing, word)
    ward.listen()


def wait_in_vain(ward: Ward) -> None:
    """Until a process that was heard now would have been judged."""
    other = Ward(STALL)
    hear(other, ALIVE)
    eventually(lambda: ward.listen() or other.listen() or other.silence(os.getpid()))
    other.close()


def test_a_process_that_was_heard_and_falls_silent_is_ended(ward: Ward, silent: subprocess.Popen[bytes]) -> None:
    hear(ward, ALIVE)
    assert ward.silence(silent.pid) is None
    said = eventually(lambda: ward.listen() or ward.silence(silent.pid))
    assert said.startswith("no sign of life for 0.25 s")
    ward.end(silent.pid)
    assert silent.wait(10) == -signal.SIGABRT


@pytest.mark.parametrize("words", [b"", ALIVE + ANEW, ALIVE + LEAVING])
def test_a_process_that_is_not_ready_is_not_judged(ward: Ward, silent: subprocess.Popen[bytes], words: bytes) -> None:
    hear(ward, words)
    wait_in_vain(ward)
    assert ward.silence(silent.pid) is None


def test_a_process_that_somebody_stopped_is_not_judged(ward: Ward, silent: subprocess.Popen[bytes]) -> None:
    hear(ward, ALIVE)
    silent.send_signal(signal.SIGSTOP)
    eventually(lambda: psutil.Process(silent.pid).status() == psutil.STATUS_STOPPED)
    wait_in_vain(ward)
    assert ward.silence(silent.pid) is None
    silent.send_signal(signal.SIGCONT)
    eventually(lambda: ward.listen() or ward.silence(silent.pid))


def test_a_listener_that_was_away_itself_judges_nobody_by_that(
    ward: Ward, silent: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breath, "LATE_SECONDS", STALL)
    hear(ward, ALIVE)
    other = Ward(STALL)
    hear(other, ALIVE)
    eventually(lambda: other.silence(os.getpid()))  # and nobody listens to the first
    other.close()
    ward.listen()
    assert ward.silence(silent.pid) is None
    eventually(lambda: ward.listen() or ward.silence(silent.pid))
