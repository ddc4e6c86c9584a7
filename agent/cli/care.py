"""Commands that care for the installation: doctor, migrate, rehearse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer

from agent.cli.screen import AsJson, console, harmless, print_json
from agent.client import AgentClient
from agent.config import Settings, read_settings
from agent.home import open_home
from agent.process import is_provably_gone
from store import schema
from store.database import check
from store.errors import PerdureError

MARKS = {"ok": ("✓", "green"), "note": ("•", "yellow"), "bad": ("✗", "red")}


@dataclass(frozen=True)
class Finding:
    what: str
    verdict: Literal["ok", "note", "bad"]
    detail: str
    advice: str = ""


def add_to(app: typer.Typer) -> None:
    app.command()(doctor)
    app.command()(migrate)
    app.command()(rehearse)


def migrate() -> None:
    """Bring the database to this release's schema."""
    from agent.service import prepare

    with open_home(read_settings()) as home:
        applied = prepare(home.url)
    console.print(f"Applied: {', '.join(applied)}" if applied else "The schema is current.")


def rehearse(as_json: AsJson = False) -> None:
    """Replay every task under way against this checkout, changing nothing, and list those that no longer fit."""
    from agent.rehearsal import rehearse

    settings = read_settings()
    with open_home(settings) as home:
        rehearsal = asyncio.run(rehearse(settings, home.url))
    misfits = rehearsal.misfits
    if as_json:
        print_json(misfits)
    elif misfits:
        for row in misfits:
            console.print(f"{row.task_id}  session {row.session_id}, agent {row.agent}", style="bold", markup=False)
            console.print(f"    {harmless(row.difference)}", markup=False)
        console.print(
            f"{len(misfits)} of {rehearsal.replayed} tasks under way do not fit this release. Deployed as it is, each"
            " is handed over to a fresh task, which is told what was done."
        )
    else:
        console.print(
            f"All {rehearsal.replayed} tasks under way fit this release."
            if rehearsal.replayed
            else "No task under way has anything on record: this release can be deployed."
        )
    if misfits:
        raise typer.Exit(1)


def doctor(
    as_json: AsJson = False,
    database_url: Annotated[bool, typer.Option("--database-url", help="Print only the database's URL.")] = False,
) -> None:
    """Look for what is wrong, and say what to do."""
    if database_url:
        with open_home(read_settings()) as home:
            typer.echo(home.url)
        return
    findings = list(examine())
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            mark, colour = MARKS[finding.verdict]
            console.print(f"[{colour}]{mark}[/] {finding.what:<12}", end=" ")
            console.print(finding.detail, markup=False)
            if finding.advice:
                console.print(f"               → {finding.advice}", style="bold", markup=False)
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(1)


def examine() -> Iterator[Finding]:
    try:
        settings = read_settings()
    except PerdureError as error:
        yield Finding("settings", "bad", str(error), "correct the variable")
        return
    yield Finding("settings", "ok", "every variable has an allowed value")
    yield from examine_agents(settings)
    try:
        with open_home(settings) as home:
            version = check(home.url)
            kind = "embedded" if home.embedded else "given"
            yield Finding("database", "ok", f"Postgres {version // 10000}.{version % 10000} ({kind})")
            if not schema.is_current(home.url):
                yield Finding(
                    "schema",
                    "note",
                    "not there yet, or of an older release",
                    "perdure start migrates it, and so does perdure migrate",
                )
                return
            yield Finding("schema", "ok", f"current ({schema.migrations()[-1].name})")
            vector = schema.vector_version(home.url)
            yield Finding("pgvector", "ok", vector or "not there; nothing needs it")
            with AgentClient(home.url) as client:
                yield from examine_work(client)
    except PerdureError as error:
        yield Finding(
            "database", "bad", str(error), "start Postgres, or unset PERDURE_DATABASE_URL to use the embedded one"
        )


def examine_agents(settings: Settings) -> Iterator[Finding]:
    from pydantic_ai.models import infer_model

    from agent.registry import load_agents

    try:
        agents = load_agents(settings.agents)
    except PerdureError as error:
        yield Finding("agents", "bad", str(error), "correct PERDURE_AGENTS")
        return
    yield Finding("agents", "ok", ", ".join(agents))
    for name, agent in agents.items():
        model = settings.model or agent.model
        if model is None:
            yield Finding("model", "bad", f"{name} has no model", "give it one, or set PERDURE_MODEL")
        elif isinstance(model, str):
            try:
                infer_model(model)
                yield Finding("model", "ok", f"{name}: {model}")
            except Exception as error:
                yield Finding("model", "bad", f"{name}: {' '.join(str(error).split())}", "set the key it names")


def examine_work(client: AgentClient) -> Iterator[Finding]:
    living = client.living_workers()
    gone = [row for row in living if is_provably_gone(row.process, row.pid)]
    alive = len(living) - len(gone)
    waiting = client.tasks(status="queued", limit=1000)
    if alive:
        yield Finding("workers", "ok", f"{alive} alive")
    elif waiting:
        yield Finding("workers", "bad", f"none is alive, and {len(waiting)} tasks are queued", "perdure start")
    else:
        yield Finding("workers", "note", "none is alive", "perdure start")
    stuck = [
        row for row in client.tasks(status="running", limit=1000) if row.worker_id not in {w.worker_id for w in living}
    ]
    if stuck:
        yield Finding(
            "stuck", "bad", f"{len(stuck)} tasks belong to dead workers", "any live worker adopts them: perdure start"
        )
    if stranded := client.stranded():
        yield Finding(
            "stranded", "bad", f"{stranded} tasks are unknown to DBOS", "was its schema reset? accept them again"
        )
    if not stuck and not stranded:
        yield Finding("tasks", "ok", f"{len(waiting)} queued, none stuck")
    if letters := client.dead_letters():
        yield Finding("dead letters", "note", f"{len(letters)} tasks were set aside", "perdure dead-letters")
    if held := client.breakers():
        names = ", ".join(row.scope for row in held[:3])
        yield Finding(
            "breakers", "note", f"open: {names}", "nothing: they close by themselves; perdure alerts says why"
        )
    if alerts := client.alerts():
        yield Finding("alerts", "bad", f"{len(alerts)} are open, the newest: {alerts[0].what}", "perdure alerts")
    if doubts := client.doubts():
        yield Finding("in doubt", "note", f"{len(doubts)} effects have no recorded end", "SELECT * FROM agent.in_doubt")
    if incoherent := [row for row in client.sessions(limit=1000) if row.coherence is not None and row.coherence < 0.7]:
        names = ", ".join(row.session_id for row in incoherent[:3])
        lost = f"{len(incoherent)} sessions lost part of their state: {names}"
        yield Finding("coherence", "bad", lost, "perdure show SESSION")
    if questions := client.questions():
        first = questions[0]
        yield Finding(
            "questions", "note", f"{len(questions)} calls wait for a person", f"perdure show {first.session_id}"
        )
