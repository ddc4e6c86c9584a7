"""Worker processes for tests: real ones, to be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 60.0


@dataclass(frozen=True)
class Place:
    url: str
    folder: Path

    def environment(self, agents: Sequence[str], **settings: object) -> dict[str, str]:
        given = {f"PERDURE_{name.upper()}": str(value) for name, value in settings.items()}
        return {
            **os.environ,
            "PERDURE_DATABASE_URL": self.url,
            "PERDURE_HOME": str(self.folder),
            "PERDURE_AGENTS": ",".join(agents),
            "PERDURE_PORT": "0",
            "PERDURE_HEARTBEAT_SECONDS": "1",
            "PERDURE_DEMO_PACE": "0",
            "PERDURE_HANDOFF_SECONDS": "0",
            "PERDURE_BACKOFF_SECONDS": "0",
            "TEST_WORLD": str(self.folder),
            "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("TEST_RELEASE_PATH"), str(ROOT)])),
            **given,
        }

    def world(self, name: str) -> list[dict[str, Any]]:
        """What has happened outside: the lines that tools and models left behind."""
        file = self.folder / f"{name}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class Worker:
    """One process that takes tasks: `agent worker`, or `start` with HTTP beside it, or a fork of a warm one."""

    def __init__(self, process: subprocess.Popen[str] | Child, address: str) -> None:
        self.process = process
        self.address = address

    @classmethod
    def fork(cls, nursery: Nursery, place: Place, agents: Sequence[str], **settings: object) -> Worker:
        output = place.folder / f"worker-{uuid.uuid4().hex}.out"
        child = Child(nursery, nursery.bear(place.environment(agents, **settings), output))

        def ready() -> str | None:
            line = output.read_text() if output.exists() else ""
            return line if "\n" in line or child.poll() is not None else None

        line = eventually(lambda: ready() is not None) and (ready() or "")
        if "ready" not in line:
            child.kill()
            raise AssertionError(f"the worker did not start: {(place.folder / 'worker.log').read_text()}")
        return cls(child, line.rsplit("http://", 1)[1].split("/")[0])

    @classmethod
    def start(cls, place: Place, agents: Sequence[str], *, command: str = "worker", **settings: object) -> Worker:
        with (place.folder / "worker.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "agent", command],
                cwd=ROOT,
                env=place.environment(agents, **settings),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        if "ready" not in line:
            process.kill()
            raise AssertionError(f"the worker did not start: {(place.folder / 'worker.log').read_text()}")
        return cls(process, line.strip().rsplit("http://", 1)[1].split("/")[0])

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def dismiss(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
            self.kill()
        if self.process.stdout:
            self.process.stdout.close()


@contextlib.contextmanager
def keep_alive(place: Place, agents: Sequence[str], **settings: object) -> Iterator[list[int]]:
    """A worker that is started again whenever it dies, as systemd would; and its memory is limited, as there."""
    deaths: list[int] = []
    started, ending = threading.Event(), threading.Event()
    limit = int(str(settings.get("memory_mb", 10_000))) * 1024 * 1024

    def watch() -> None:
        while not ending.is_set():
            worker = Worker.start(place, agents, **settings)
            started.set()
            while worker.process.poll() is None and not ending.wait(0.05):
                with contextlib.suppress(psutil.Error):
                    if psutil.Process(worker.pid).memory_info().rss > limit:
                        worker.process.kill()
            if worker.process.poll() is None:
                worker.stop()
            else:
                deaths.append(worker.process.returncode)
            worker.dismiss()

    keeper = threading.Thread(target=watch)
    keeper.start()
    assert started.wait(PATIENCE)
    try:
        yield deaths
    finally:
        ending.set()
        keeper.join()


class Nursery:
    """Forks workers from one warm process. They are processes like any other, and die like them."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.nursery"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def bear(self, environment: dict[str, str], output: Path = Path(os.devnull)) -> int:
        """The pid of a new worker, which may not be ready yet."""
        return int(self._ask({"bear": environment, "output": str(output)}))

    def look(self, pid: int) -> int | None:
        """The signal or exit status a worker ended with, once it has."""
        ended = self._ask({"look": pid})
        return int(ended) if ended else None

    def wait_death(self, pid: int) -> int:
        return Child(self, pid).wait()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._process.stdout.close()

    def _ask(self, request: dict[str, Any]) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return self._process.stdout.readline().strip()


class Child:
    """A worker of the nursery, spoken to as a `Popen`."""

    stdout = None

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.look(self.pid)
        return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
        eventually(lambda: self.poll() is not None, timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def eventually(look: Callable[[], T], patience: float = PATIENCE) -> T:
    """Look until there is something true to see."""
    deadline = time.monotonic() + patience
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"never came true within {patience:g} s: {look}")
        time.sleep(0.02)
