"""The whole service as a real process, to be killed and started again at the same address; and clients beside it."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers import PATIENCE, ROOT, Place, Worker

AGENTS = ("tests.protocols.speakers:guide", "tests.protocols.speakers:guard")
NODE = Path(__file__).parent / "node"
TEXT = "word1 word2 word3 word4 word5 word6 word7 word8 word9 "
NEW = TEXT.replace("word", "new")

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not (NODE / "node_modules" / "ai").exists(),
    reason="needs Node and its packages: npm ci in tests/protocols/node",
)


def let(place: Place, words: int, kind: str = "word") -> None:
    for name, content in (("kind", kind), ("words", str(words))):
        waiting = place.folder / f"{name}.new"
        waiting.write_text(content)
        waiting.replace(place.folder / name)


class Service:
    """`perdure start`, always at the same port."""

    def __init__(self, place: Place, **settings: object) -> None:
        self.place = place
        self.settings = settings
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.running: Worker | None = None

    def start(self) -> None:
        with (self.place.folder / "service.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "agent", "start"],
                cwd=ROOT,
                env=self.place.environment(AGENTS, **self.settings) | {"PERDURE_PORT": str(self.port)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "ready" in line, (self.place.folder / "service.log").read_text()
        self.running = Worker(process, line)

    def kill(self) -> None:
        assert self.running is not None
        self.running.kill()
        self.running.dismiss()
        self.running = None

    def dismiss(self) -> None:
        if self.running is not None:
            self.running.dismiss()


@contextlib.contextmanager
def service(place: Place, **settings: object) -> Iterator[Service]:
    made = Service(place, **settings)
    made.start()
    try:
        yield made
    finally:
        made.dismiss()


class NodeClient:
    """A client in JavaScript. It says what it shows, a line each time that changes."""

    def __init__(self, script: str, **given: object) -> None:
        self._process = subprocess.Popen(
            ["node", str(NODE / script), json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=NODE,
        )
        self.said: list[dict[str, Any]] = []
        self._timer = threading.Timer(PATIENCE, self._process.kill)
        self._timer.start()

    def until(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        assert self._process.stdout is not None and self._process.stderr is not None
        for line in self._process.stdout:
            self.said.append(json.loads(line))
            if is_it(self.said[-1]):
                return self.said[-1]
        raise AssertionError(f"it ended with: {self.said[-3:]} {self._process.stderr.read()}")

    def end(self) -> dict[str, Any]:
        return self.until(lambda said: "done" in said)

    def close(self) -> None:
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def node(script: str, **given: object) -> Iterator[NodeClient]:
    client = NodeClient(script, **given)
    try:
        yield client
    finally:
        client.close()
