"""Where suspects are tried: forks one process for each, watches over its memory and breath, and tells how it ended.

It has everything imported and does nothing else: no database, no threads, so that forking is safe and quick.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from dataclasses import dataclass, field

import psutil

from agent import service
from agent.breath import VARIABLE, Ward
from agent.config import Settings, read_settings
from agent.log import log
from agent.process import ending
from store.types import WorkerId

LOOK_SECONDS = 0.1
BIRTH_SECONDS = 120.0
"""How long a process may take to be ready for its suspect. One that is not convicts nobody."""


@dataclass
class Child:
    worker: str
    ward: Ward
    began_at: float = field(default_factory=time.monotonic)
    sentence: str | None = None
    is_hang: bool = False


class Court:
    def __init__(self, settings: Settings) -> None:
        self._memory = settings.isolation_memory_mb * 1024 * 1024
        self._memory_mb = settings.isolation_memory_mb
        self._stall_seconds = settings.stall_seconds
        self._children: dict[int, Child] = {}

    def sit(self) -> None:
        unread = b""
        while True:
            readable, _, _ = select.select([0], [], [], LOOK_SECONDS)
            if readable:
                chunk = os.read(0, 65536)
                if not chunk:
                    break
                *lines, unread = (unread + chunk).split(b"\n")
                for line in lines:
                    self._call(json.loads(line))
            self._look()
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        while self._children:
            self._look()
            select.select([], [], [], LOOK_SECONDS)

    def _call(self, case: dict[str, str]) -> None:
        ward = Ward(self._stall_seconds)
        pid = os.fork()
        if pid == 0:
            live(case["worker"], case["url"], ward)
        self._children[pid] = Child(case["worker"], ward)

    def _look(self) -> None:
        for pid, child in list(self._children.items()):
            self._judge(pid, child)
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self._children[pid]
                child.ward.close()
                ended = child.sentence or ending(os.waitstatus_to_exitcode(status))
                told = {"worker": child.worker, "ended": ended, "is_hang": child.is_hang}
                with contextlib.suppress(BrokenPipeError):
                    os.write(1, json.dumps(told).encode() + b"\n")

    def _judge(self, pid: int, child: Child) -> None:
        child.ward.listen()
        if child.sentence is None and (silence := child.ward.silence(pid)):
            child.sentence, child.is_hang = silence, True
        if child.is_hang:
            child.ward.end(pid)
        elif not child.ward.heard and time.monotonic() - child.began_at > BIRTH_SECONDS:
            self._kill(pid, child, f"it was not ready within {BIRTH_SECONDS:g} s")
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).memory_info().rss > self._memory:
                self._kill(pid, child, f"it used more than {self._memory_mb} MB of memory")

    def _kill(self, pid: int, child: Child, sentence: str) -> None:
        child.sentence = child.sentence or sentence
        os.kill(pid, signal.SIGKILL)


def live(worker: str, url: str, ward: Ward) -> None:
    """The child: one worker with one task."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        os.environ[VARIABLE] = str(ward.writing)
        service.run_trial(url, WorkerId(worker))
    except BaseException as error:
        log.error("a trial could not be held", exc_info=error)
    finally:
        os._exit(70)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Court(read_settings()).sit()


if __name__ == "__main__":
    main()
