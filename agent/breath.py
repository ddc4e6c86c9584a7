"""Signs of life through a pipe, from a process to whoever started it.

A tool that holds the interpreter's lock for ever, as a runaway regular expression does, stops every thread of its
process, the watchdog too: only another process can see that.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time

import psutil

VARIABLE = "PERDURE_BREATH_FD"
"""Tells a process where somebody listens."""

ALIVE = b"."
LEAVING = b"!"
ANEW = b"~"
"""It executes itself anew, and is silent until it is ready again."""
CUT_OFF = b"?"
"""It could not start, for Postgres did not answer."""

MARGIN_SHARE = 0.25
LEAST_MARGIN_SECONDS = 2.0
"""Beyond the stall time, so that the watchdog inside comes first wherever it can."""
LATE_SECONDS = 2.0
"""A listener that was itself away for so long judges nobody by the time it missed."""
DUMP_SECONDS = 1.0
"""What a process has to write where it stands, before it is killed."""
LONGEST_PAUSE = 5.0


_lock = threading.Lock()
_last_word: bytes | None = None


def tell(word: bytes) -> None:
    """Nothing happens when nobody listens. After a last word there is no other."""
    global _last_word
    descriptor = os.environ.get(VARIABLE)
    with _lock:
        if descriptor is not None and _last_word is None:
            _last_word = None if word == ALIVE else word
            with contextlib.suppress(OSError):
                os.write(int(descriptor), word)


class Breath(threading.Thread):
    """Breathes from the moment the process is ready, and as long as any thread of it can run."""

    def __init__(self, stall_seconds: float) -> None:
        super().__init__(name="perdure-breath", daemon=True)
        self._pause = min(stall_seconds / 10, LONGEST_PAUSE)

    def run(self) -> None:
        while _last_word is None:
            tell(ALIVE)
            time.sleep(self._pause)


def begin(stall_seconds: float) -> None:
    """The process is ready, and is heard from now on."""
    if sys.stderr is not None:
        faulthandler.enable()  # it needs no lock to write where every thread stands, when `Ward.end` asks for it
    if VARIABLE in os.environ:
        Breath(stall_seconds).start()


class Ward:
    """One process, one life after the other, as seen by who started it."""

    def __init__(self, stall_seconds: float) -> None:
        self.limit = stall_seconds + max(stall_seconds * MARGIN_SHARE, LEAST_MARGIN_SECONDS)
        self.reading, self.writing = os.pipe()
        for descriptor in (self.reading, self.writing):
            os.set_blocking(descriptor, False)  # a listener that is away must not hold up whoever breathes
        self.begin()

    def begin(self) -> None:
        """Another life."""
        self.heard = b""
        self._heard_at: float | None = None
        self._looked = time.monotonic()
        self._sentenced_at: float | None = None

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)

    def listen(self) -> None:
        now = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            while words := os.read(self.reading, 65536):
                self.heard = bytes(sorted({*self.heard, *words}))
                self._heard_at = now if words.endswith(ALIVE) else None
        if self._heard_at is not None and now - self._looked > LATE_SECONDS:
            self._heard_at = now
        self._looked = now

    def silence(self, pid: int) -> str | None:
        """That it was silent for too long, in words. One that is not ready, or is held by a debugger, is not judged."""
        if self._heard_at is None or time.monotonic() - self._heard_at <= self.limit:
            return None
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                self._heard_at = time.monotonic()
                return None
        return f"no sign of life for {self.limit:g} s: something holds up all of its threads"

    def end(self, pid: int) -> None:
        """Have it write where it stands and end; called until it has."""
        now = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            if self._sentenced_at is None:
                self._sentenced_at = now
                os.kill(pid, signal.SIGABRT)
            elif now - self._sentenced_at > DUMP_SECONDS:
                os.kill(pid, signal.SIGKILL)
