"""A real browser in front of the real service."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers import ROOT, Place

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--font-render-hinting=none",
]

LOST = ("ERR_", "Failed to load resource", "Failed to fetch")
"""What a browser says of requests that a kill, or the next page, cut off."""

Shoot = Callable[[str], None]
Serve = Callable[..., str]


@pytest.fixture(scope="module")  # while it is open, asyncio.run is not to be had in this thread
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; .ci/run installs it, or: apt install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages on which nothing may go wrong: no error of a script, nothing that the policy forbids, no dialog."""
    opened, wrong = [], []

    def hear(message: Any) -> None:
        if message.type == "error" and not any(each in message.text for each in LOST):
            wrong.append(message.text)

    def make(**options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.on("console", hear)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        opened.append(context)
        return page

    yield make
    for context in opened:
        context.close()
    assert wrong == []


@pytest.fixture
def page(open_page: Callable[..., Any]) -> Any:
    return open_page()


@pytest.fixture
def shoot(page: Any, tmp_path: Path) -> Shoot:
    """Takes a picture, into the folder that `python -m tests.browser.pictures` names, or into one that passes."""
    folder = Path(os.environ.get("PERDURE_PICTURES") or tmp_path / "pictures")
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str, of: Any = None) -> None:
        (of or page).screenshot(path=folder / f"{name}.png", animations="disabled")

    return take


@pytest.fixture
def serve(place: Place) -> Iterator[Serve]:
    """Starts the service as people do, under its keeper, and gives its address."""
    services: list[subprocess.Popen[str]] = []

    def start(*agents: str, **settings: object) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = place.environment(agents, **{"port": port, "drain_seconds": 0, **settings})
        if not agents:
            del environment["PERDURE_AGENTS"]
        with (place.folder / "service.log").open("a") as log:
            service = subprocess.Popen(
                [sys.executable, "-m", "agent", "start", "--supervise"],
                cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        services.append(service)
        assert service.stdout is not None
        line = service.stdout.readline()
        assert "ready" in line, (place.folder / "service.log").read_text()
        return line.split()[-1]

    yield start
    for service in services:
        service.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            service.wait(30)
        if service.poll() is None:
            service.kill()
            service.wait()
        assert service.stdout is not None
        service.stdout.close()
