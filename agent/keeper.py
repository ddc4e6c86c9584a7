"""Supervised mode: a parent that starts the service again when it dies, and says so when that does not help.

It imports nothing of the service, so that it stays small and what kills the one spares the other. The child has a
process group of its own: a signal to ours, as Ctrl-C sends it, reaches the child only through us, as SIGTERM.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import psutil

from agent import breath, log, process, runfile, systemd
from agent.config import Settings, read_settings
from agent.home import address, open_home
from agent.log import log as journal
from store import supervision, workers
from store.database import Link, connect
from store.errors import Unreachable

Command = Literal["start", "worker"]

RESTARTED = "PERDURE_RESTARTED"
"""Tells the child that nobody started it by hand."""

REFUSED = 1
"""The exit status of a start that cannot work, after one sentence that says why."""

LOOK_SECONDS = 1.0
CLOSE_LOOK_SECONDS = 0.25
"""How often a child is looked at, and one whose memory is limited, or which is to end."""

SHORTEST_WAIT, LONGEST_WAIT = 0.2, 30.0
"""Between two looks whether Postgres is back; that should not be noticed late."""


def keep(command: Command) -> int:
    """Serve until told to stop, whatever dies meanwhile; the exit status."""
    log.configure()
    settings = read_settings()
    claimed = runfile.claim()
    status = Keeper(settings, command).run()
    if status == 0:
        runfile.end_as_planned(claimed)
    return status


def alert_key(settings: Settings) -> str:
    """One for each service: several on one host have homes or ports of their own."""
    return f"keeper:{process.host()}:{settings.port}:{settings.home.absolute()}"


def is_restart() -> bool:
    """Asked by the service: whether the keeper started it after it had died."""
    return RESTARTED in os.environ


def is_kept() -> bool:
    """Asked by the service: whether a keeper would start it again."""
    return breath.VARIABLE in os.environ


@dataclass(frozen=True)
class End:
    """How a child ended, and which process it was."""

    code: int
    how: str
    process: str | None
    _: KW_ONLY
    was_planned: bool
    is_hang: bool
    was_cut_off: bool


class Keeper:
    def __init__(self, settings: Settings, command: Command) -> None:
        self._settings = settings
        self._command = command
        self._ward = breath.Ward(settings.stall_seconds)
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
            if end.was_cut_off:
                if not self._await_database():
                    return 0
                continue
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
        self._ward.begin()
        child = subprocess.Popen(
            [sys.executable, "-m", "agent", self._command],
            stdin=subprocess.DEVNULL, env=self._environment(), pass_fds=[self._ward.writing], process_group=0,
        )  # fmt: skip
        known = process.identity(child.pid)
        overweight: str | None = None
        silence: str | None = None
        while child.poll() is None:
            if self._is_stopping:
                child.send_signal(signal.SIGTERM)  # and again: one that just began anew has not heard the first
            if overweight is None and self._is_too_large(child.pid):
                overweight = f"it used more than {self._settings.memory_mb} MB of memory"
                child.kill()
            silence = silence or self._ward.silence(child.pid)
            if silence is not None:
                self._ward.end(child.pid)
            is_close = self._settings.memory_mb or self._is_stopping or silence
            self._listen(CLOSE_LOOK_SECONDS if is_close else LOOK_SECONDS)
        self._ward.listen()
        heard = self._ward.heard
        self._was_ready |= breath.ALIVE in heard
        how = overweight or silence or process.ending(child.returncode)
        return End(
            child.returncode,
            how or "exit status 0, without having been asked to stop",
            known,
            was_planned=child.returncode == 0 and (breath.LEAVING in heard or not heard),
            is_hang=silence is not None,
            was_cut_off=breath.CUT_OFF in heard,
        )

    def _environment(self) -> dict[str, str]:
        """The run file is ours: the child may come and go."""
        given = {name: value for name, value in os.environ.items() if name not in (runfile.VARIABLE, RESTARTED)}
        return {**given, breath.VARIABLE: str(self._ward.writing), **({RESTARTED: "1"} if self._was_ready else {})}

    def _is_too_large(self, pid: int) -> bool:
        if self._settings.memory_mb is None:
            return False
        with contextlib.suppress(psutil.Error):
            return psutil.Process(pid).memory_info().rss > self._settings.memory_mb * 1024 * 1024
        return False

    def _listen(self, seconds: float) -> None:
        """Wait for a signal or a word, and for so long at most; the end of the child is a signal too."""
        select.select([self._signals, self._ward.reading], [], [], seconds)
        self._ward.listen()
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

    def _await_database(self) -> bool:
        """A start that Postgres did not answer is no crash. Whether it answers before anybody asks us to stop."""
        journal.warning("Postgres cannot be reached; the service is started again once it can, and no crash is counted")
        given = self._settings.backoff_seconds
        waits = itertools.chain(given, itertools.repeat(given[-1]))
        while self._pause(min(max(next(waits), SHORTEST_WAIT), LONGEST_WAIT)):
            with contextlib.suppress(Unreachable):
                if self._settings.database_url is not None:  # the embedded one is started with the service
                    connect(self._settings.database_url).close()
                return True
        return False

    def _give_up(self, end: End) -> None:
        times, minutes = len(self._crashes), self._settings.crash_window_seconds / 60
        where = f"{process.host()} (home {self._settings.home.absolute()}, port {self._settings.port})"
        what = f"Perdure on {where} died {times} times within {minutes:g} minutes, the last time: {end.how}."
        did = "It was started again each time before, and now stays down. Every accepted task is kept and waits."
        advice = (
            "Look for the cause at the end of its log and in agent.workers.ended, mend it, and start it again:"
            f" perdure {self._command} --supervise. The tasks go on by themselves."
        )
        journal.error("%s %s %s", what, did, advice)
        self._note(end)
        key = alert_key(self._settings)
        try:
            with open_home(self._settings) as home, contextlib.closing(Link(home.url, size=1)) as link:
                link.run(supervision.raise_alert(key, what=what, did=did, advice=advice))
                self._send_alert(link, key)
        except Exception as error:
            journal.error("the alert about it could not be raised", exc_info=error)

    def _send_alert(self, link: Link, key: str) -> None:
        """No worker is left here to do it; what is not received now is sent after the next start."""
        from agent import outside  # nothing that the keeper has to carry before

        address, alert = outside.address_of(self._settings), link.run(supervision.find_alert(key))
        message = outside.message_about(alert, "raised") if alert is not None else None
        if address is None or alert is None or message is None:
            return
        problem = outside.send_now(message, address, self._pause)
        if problem is None:
            link.run(supervision.note_alert(alert.alert_id, None))
        else:
            journal.error("the alert did not reach %s: %s; it is sent after the next start", address.host, problem)

    def _note(self, end: End) -> None:
        """For whoever looks later; that it cannot be written is no reason not to go on."""
        if end.process is None:
            return
        try:
            with contextlib.closing(Link(address(self._settings), size=1)) as link:
                link.run(workers.note_process_end(end.process, end.how, is_hang=end.is_hang))
        except Exception as error:
            journal.warning("how the service ended could not be noted in Postgres", exc_info=error)


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
