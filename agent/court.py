"""Where suspects are tried: forks one process for each, watches over its memory, and tells how it ended.

It has everything imported and does nothing else: no database, no threads, so that forking is safe and quick.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal

import psutil

from agent import service
from agent.config import read_settings
from agent.log import log
from agent.process import ending
from store.types import WorkerId

LOOK_SECONDS = 0.1


class Court:
    def __init__(self, memory_mb: int) -> None:
        self._memory = memory_mb * 1024 * 1024
        self._memory_mb = memory_mb
        self._children: dict[int, str] = {}
        self._sentences: dict[int, str] = {}

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
        pid = os.fork()
        if pid == 0:
            live(case["worker"], case["url"])
        self._children[pid] = case["worker"]

    def _look(self) -> None:
        for pid, worker in list(self._children.items()):
            with contextlib.suppress(psutil.Error):
                if psutil.Process(pid).memory_info().rss > self._memory:
                    self._sentences[pid] = f"it used more than {self._memory_mb} MB of memory"
                    os.kill(pid, signal.SIGKILL)
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self._children[pid]
                ended = self._sentences.pop(pid, None) or ending(os.waitstatus_to_exitcode(status))
                with contextlib.suppress(BrokenPipeError):
                    os.write(1, json.dumps({"worker": worker, "ended": ended}).encode() + b"\n")


def live(worker: str, url: str) -> None:
    """The child: one worker with one task."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        service.run_trial(url, WorkerId(worker))
    except BaseException as error:
        log.error("a trial could not be held", exc_info=error)
    finally:
        os._exit(70)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Court(read_settings().isolation_memory_mb).sit()


if __name__ == "__main__":
    main()
