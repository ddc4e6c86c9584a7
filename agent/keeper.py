"""Supervised mode: a parent that starts the service again when it dies, and says so when that does not help.

It imports nothing of the service, so that it stays small and what kills the one spares the other. The child has a
process group of its own: a signal to ours, as Ctrl-C sends it, reaches the child only through us, as SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Literal

import psutil

from agent import log, process, runfile, systemd
from agent.config import Settings, read_settings
from agent.home import address, open_home
from agent.log import log as journal
from store import supervision, workers
from store.database import Link
from store.statement import Statement

Command = Literal["start", "worker"]

READY_FD = "PERDURE_READY_FD"
LEAVING = b"!"
"""Tells the child where to say that it is ready."""

RESTARTED = "PERDURE_RESTARTED"
"""Tells the child that nobody started it by hand."""

REFUSED = 1
"""The exit status of a start that cannot work, after one sentence that says why."""

LOOK_SECONDS = 0.25
"""How often a child is looked at whose memory is limited, or which is to stop; any other is left in peace."""


def keep(command: Command) -> int:
    """Serve until told to stop, whatever dies meanwhile; the exit status."""
    log.configure()
    settings = read_settings()
    claimed = runfile.claim()
    status = Keeper(settings, command).run()
    if status == 0:
        runfile.end_as_planned(claimed)
    return status


def alert_key() -> str:
    return f"keeper:{process.host()}"


def is_restart() -> bool:
    """Asked by the service: whether the keeper started it after it had died."""
    return RESTARTED in os.environ


def is_kept() -> bool:
    """Asked by the service: whether a keeper would start it again."""
    return READY_FD in os.environ


def tell_ready() -> None:
    """Said by the service; nothing happens when no keeper listens."""
    _tell(b".")


def tell_leaving() -> None:
    """Said by the service at a planned end. An end without this word is a crash, whatever its exit status."""
    _tell(LEAVING)


def _tell(word: bytes) -> None:
    descriptor = os.environ.get(READY_FD)
    if descriptor is not None:
        with contextlib.suppress(OSError):
            os.write(int(descriptor), word)


@dataclass(frozen=True)
class End:
    """How a child ended, and which process it was."""

    code: int
    how: str
    process: str | None
    was_planned: bool


class Keeper:
    def __init__(self, settings: Settings, command: Command) -> None:
        self._settings = settings
        self._command = command
        self._ready, self._say_ready = os.pipe()
        os.set_blocking(self._ready, False)
        self._was_ready = False
        self._stop_signals, self._signals = hear_signals()
        self._is_stopping = False
        self._crashes: list[float] = []

    def run(self) -> int:
        while True:
            end = self._serve()
            if self._is_stopping or end.was_planned:
                return 0 if end.code in (0, -signal.SIGTERM) else 1
            if end.code == REFUSED and not self._was_ready:
                return REFUSED
            wait = self._count_crash()
            if wait is None:
                self._give_up(end)
                return 1
            journal.warning(
                "the service died (%s): crash %d, and %d are put up with; it is started again in %g s",
                end.how, len(self._crashes), self._settings.crash_limit, wait,
            )  # fmt: skip
            threading.Thread(target=self._note, args=[end], daemon=True).start()
            if not self._pause(wait):
                return 0

    def _serve(self) -> End:
        """One life of the service, from its start to its end."""
        child = subprocess.Popen(
            [sys.executable, "-m", "agent", self._command],
            stdin=subprocess.DEVNULL, env=self._environment(), pass_fds=[self._say_ready], process_group=0,
        )  # fmt: skip
        known = process.identity(child.pid)
        sentence: str | None = None
        while child.poll() is None:
            if self._is_stopping:
                child.send_signal(signal.SIGTERM)  # and again: one that just began anew has not heard the first
            if sentence is None and self._is_too_large(child.pid):
                sentence = f"it used more than {self._settings.memory_mb} MB of memory"
                child.kill()
            self._listen(LOOK_SECONDS if self._settings.memory_mb or self._is_stopping else None)
        heard = b""
        with contextlib.suppress(BlockingIOError):
            heard = os.read(self._ready, 4096)
        self._was_ready |= bool(heard)
        was_planned = child.returncode == 0 and (LEAVING in heard or not heard)
        how = sentence or process.ending(child.returncode) or "exit status 0, without having been asked to stop"
        return End(child.returncode, how, known, was_planned)

    def _environment(self) -> dict[str, str]:
        """The run file is ours: the child may come and go."""
        given = {name: value for name, value in os.environ.items() if name not in (runfile.VARIABLE, RESTARTED)}
        return {**given, READY_FD: str(self._say_ready), **({RESTARTED: "1"} if self._was_ready else {})}

    def _is_too_large(self, pid: int) -> bool:
        if self._settings.memory_mb is None:
            return False
        with contextlib.suppress(psutil.Error):
            return psutil.Process(pid).memory_info().rss > self._settings.memory_mb * 1024 * 1024
        return False

    def _listen(self, seconds: float | None) -> None:
        """Wait for a signal, and for so long at most; the end of the child is a signal too."""
        select.select([self._signals], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            heard = os.read(self._signals, 4096)
            self._is_stopping |= any(number in heard for number in self._stop_signals)

    def _pause(self, seconds: float) -> bool:
        """Whether the time passed without anybody asking us to stop."""
        until = time.monotonic() + seconds
        while not self._is_stopping and (left := until - time.monotonic()) > 0:
            systemd.notify("WATCHDOG=1")  # nobody else is there to say it
            self._listen(min(left, systemd.pulse_seconds() or left))
        return not self._is_stopping

    def _count_crash(self) -> float | None:
        """How long to wait after this crash; nothing when there were too many."""
        now = time.monotonic()
        self._crashes = [at for at in self._crashes if now - at < self._settings.crash_window_seconds] + [now]
        if len(self._crashes) > self._settings.crash_limit:
            return None
        waits = self._settings.backoff_seconds
        return waits[min(len(self._crashes), len(waits)) - 1]

    def _give_up(self, end: End) -> None:
        times, minutes = len(self._crashes), self._settings.crash_window_seconds / 60
        what = f"Perdure on {process.host()} died {times} times within {minutes:g} minutes, the last time: {end.how}."
        did = "It was started again each time before, and now stays down. Every accepted task is kept and waits."
        advice = (
            "Look for the cause at the end of its log and in agent.workers.ended, mend it, and start it again:"
            f" perdure {self._command} --supervise. The tasks go on by themselves."
        )
        journal.error("%s %s %s", what, did, advice)
        self._note(end)
        alert = supervision.raise_alert(alert_key(), what=what, did=did, advice=advice)
        try:
            with open_home(self._settings) as home:
                run_once(home.url, alert)
        except Exception as error:
            journal.error("the alert about it could not be raised", exc_info=error)

    def _note(self, end: End) -> None:
        """For whoever looks later; that it cannot be written is no reason not to go on."""
        if end.process is None:
            return
        try:
            run_once(address(self._settings), workers.note_process_end(end.process, end.how))
        except Exception as error:
            journal.warning("how the service ended could not be noted in Postgres", exc_info=error)


def run_once(url: str, statement: Statement[None]) -> None:
    with contextlib.closing(Link(url, size=1)) as link:
        link.run(statement)


def hear_signals() -> tuple[tuple[int, ...], int]:
    """Signals become bytes on a pipe, so that none is missed between two looks; those that mean stop, and the pipe."""
    reading, writing = os.pipe()
    for descriptor in (reading, writing):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    meant = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    stopping = tuple(number for number in meant if signal.getsignal(number) != signal.SIG_IGN)
    for number in (*stopping, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return stopping, reading
