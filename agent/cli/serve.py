"""Commands that run: start, worker, demo."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.config import read_settings
from agent.keeper import keep

Supervise = Annotated[bool, typer.Option("--supervise", help="Start it again when it dies, with growing waits.")]


def add_to(app: typer.Typer) -> None:
    app.command()(start)
    app.command()(worker)
    app.command()(demo)


def start(supervise: Supervise = False) -> None:
    """Run HTTP, console and a worker in one process. Stop it with Ctrl-C: nothing is lost."""
    if supervise:
        raise typer.Exit(keep("start"))
    from agent.service import run

    run(read_settings(), console=True)


def worker(supervise: Supervise = False) -> None:
    """Run tasks only, with /livez, /readyz and /metrics on PERDURE_PORT. Start as many as you like, on any machine."""
    if supervise:
        raise typer.Exit(keep("worker"))
    from agent.service import run

    run(read_settings(), console=False)


def demo() -> None:
    """Watch a worker die with kill -9 in the middle of an effect, and the task go on. Offline, under a minute."""
    from agent.cli.story import tell

    tell()
