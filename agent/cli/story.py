"""The demo: a worker dies with kill -9 in the middle of an effect, another goes on, and one sees why nothing broke."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rich.text import Text

from agent.cli.screen import brief, console
from agent.client import AgentClient, Task, wait_until
from agent.config import Settings
from agent.demo.agents import find_in_outbox
from agent.home import open_home
from store.types import EventRow

PATIENCE = 40.0


def tell() -> None:
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        os.environ["PERDURE_HOME"] = folder
        os.environ.pop("PERDURE_AGENTS", None)
        settings = Settings(database_url=None, home=home)
        with open_home(settings) as opened:
            say("A real Postgres is up, in a folder of its own.")
            crew = Crew(home)
            try:
                perform(opened.url, crew)
            finally:
                crew.dismiss()


def perform(url: str, crew: Crew) -> None:
    first = crew.hire()
    with AgentClient(url) as client:
        task = client.enqueue("researcher", "lighthouses", user="you")
        session = client.session(task.session_id)
        say("A worker is up. The agent “researcher” gets a task of a dozen steps: research lighthouses, publish once.")
        wait_until(
            lambda: event(session.events(), "tool.started", "publish_report") or None,
            PATIENCE,
            lambda: "publish_report did not begin",
        )
        wait_until(lambda: find_any(session.events()), PATIENCE, lambda: "nothing was published")
        recorded = len(task.steps())
        say(f"It is publishing: the effect has happened, its end is not recorded yet. {recorded} steps are.")
        first.send_signal(signal.SIGKILL)
        first.wait()
        say("kill -9. No warning, no clean-up.", "bold red")
        crew.hire()
        say("Another worker starts. It finds the first one gone, and takes over what it ran.")
        answer = task.result(timeout=PATIENCE)
        timeline(session.events(), task, recorded)
        say(f"The answer: {answer}", "green")
        judge(task, recorded, session.events())


def find_any(events: Iterable[EventRow]) -> bool | None:
    started = event(events, "tool.started", "publish_report")
    return True if started and find_in_outbox(started.data["idempotency_key"]) else None


def event(events: Iterable[EventRow], kind: str, tool: str) -> EventRow | None:
    return next((seen for seen in events if seen.kind == kind and seen.data.get("tool") == tool), None)


def timeline(events: list[EventRow], task: Task, recorded: int) -> None:
    start = events[0].at
    for seen in events:
        facts, note, style = seen.data, "", ""
        match seen.kind:
            case "worker.died":
                note, style = f"{facts['worker']} is gone; its task is queued again", "bold red"
            case "restart.noticed":
                note, style = f"the user is told: {brief(facts['body'], 150)}", "bold magenta"
            case "task.resumed":
                note, style = (
                    f"by {facts['worker']}: {recorded} recorded steps are given back, not run again",
                    "bold cyan",
                )
            case "effect.doubted":
                note, style = (
                    f"{facts['tool']} was started and has no recorded end: in doubt, policy “{facts['policy']}”",
                    "bold yellow",
                )
            case "tool.finished" if facts.get("settled"):
                note, style = f"{facts['tool']}: {facts['settled']}", "bold green"
            case "tool.started" | "tool.finished":
                note = f"{facts['tool']}" + (f"  ({facts['ms']} ms)" if "ms" in facts else "")
            case _:
                note = brief({key: facts[key] for key in facts if key in ("worker", "input", "status", "model")}, 70)
        at = (seen.at - start).total_seconds()
        console.print(Text(f"{at:7.2f} s  ", "dim") + Text(f"{seen.kind:<16} ", style) + Text(note, style or "dim"))


def judge(task: Task, recorded: int, events: list[EventRow]) -> None:
    published = sum('"kind": "report"' in line for line in outbox_lines())
    steps = task.steps()
    again = len([seen for seen in events if seen.kind == "model.responded"]) - len(
        [s for s in steps if s.kind == "model"]
    )
    say(
        f"{len(steps)} steps, each recorded once; {recorded} survived the kill; {again} ran again; "
        f"the report was published {published} time{'s' if published != 1 else ''}.",
        "bold",
    )
    if published != 1 or again != 0:
        raise SystemExit(1)


def outbox_lines() -> list[str]:
    from agent.demo.agents import outbox

    return outbox().read_text("utf-8").splitlines()


class Crew:
    """The worker processes of the demo, none of which outlives it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._workers: list[subprocess.Popen[str]] = []

    def hire(self) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, "-m", "agent", "worker"],
            env={**os.environ, "PERDURE_HOME": str(self._home), "PERDURE_PORT": "0", "PERDURE_DATABASE_URL": "",
                 "DBOS_SYSTEM_DATABASE_URL": "", "PERDURE_DRAIN_SECONDS": "0", "PERDURE_BACKOFF_SECONDS": "0.5"},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        self._workers.append(worker)
        assert worker.stdout is not None
        if not worker.stdout.readline():
            raise SystemExit("The demo's worker did not start. Try: perdure doctor")
        return worker

    def dismiss(self) -> None:
        for worker in self._workers:
            with suppress(ProcessLookupError):
                worker.terminate()
        for worker in self._workers:
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()


def say(text: str, style: str = "bold cyan") -> None:
    console.print(Text("» ", "dim") + Text(text, style))
