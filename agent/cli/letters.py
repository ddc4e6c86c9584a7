"""Commands for what needs a person: dead letters and alerts."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.cli.screen import AsJson, ago, brief, connected, console, print_json, print_table
from store.errors import NotFound

letters = typer.Typer(help="Tasks that will not be tried again until you say so: list, show, retry, discard.")


def add_to(app: typer.Typer) -> None:
    app.add_typer(letters, name="dead-letters")
    app.command()(alerts)


@letters.callback(invoke_without_command=True)
def listed(context: typer.Context, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is not None:
        return
    with connected() as client:
        rows = client.dead_letters()
    if as_json:
        print_json(rows)
        return
    print_table(
        ["task", "session", "agent", "at", "crashes", "hangs", "input", "reason"],
        [
            [row.task_id, row.session_id, row.agent, ago(row.at), row.crashes, row.hangs, brief(row.input, 30),
             brief(row.reason, 80)]
            for row in rows
        ],
        empty="No dead letters.",
    )  # fmt: skip


@letters.command()
def show(task: str, as_json: AsJson = False) -> None:
    """Show one dead letter with its evidence."""
    with connected() as client:
        found = [row for row in client.dead_letters() if row.task_id == task]
        if not found:
            raise NotFound(f"there is no dead letter {task!r}")
        events = [event for event in client.session(found[0].session_id).events() if event.task_id == task]
    if as_json:
        print_json(found)
        return
    [row] = found
    console.print(f"{row.task_id} of session {row.session_id}, agent {row.agent}: {row.reason}", markup=False)
    console.print(f"Input: {brief(row.input, 2000)}", markup=False)
    for name, fact in (row.evidence or {}).items():
        console.print(f"  {name:<10} {brief(fact, 200)}", markup=False)
    for event in events[-10:]:
        console.print(f"  {event.at.astimezone():%H:%M:%S}  {event.kind:<18} {brief(event.data, 100)}", markup=False)
    console.print(f"perdure dead-letters retry {task}   or   discard {task}", style="bold", markup=False)


@letters.command()
def retry(
    task: str,
    input: Annotated[str | None, typer.Option(help="Other words; a new task then takes its place.")] = None,
) -> None:
    """Put it back: it goes on from its records, or begins anew with other words."""
    with connected() as client:
        following = client.retry(task, input=input)
        console.print(f"Task {following.id} is {following.status()}.", markup=False)


@letters.command()
def discard(task: str, reason: Annotated[str | None, typer.Option(help="Why, for whoever asks later.")] = None) -> None:
    """Leave it for good."""
    with connected() as client:
        client.discard(task, reason=reason)
    console.print("Discarded.")


def alerts(
    everything: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what a person should know: what happened, since when, what Perdure did, what you can do."""
    with connected() as client:
        rows = client.alerts(resolved=everything)
    if as_json:
        print_json(rows)
        return
    if not rows:
        console.print("No open alerts.")
    for row in rows:
        over = f", over {ago(row.resolved_at)}" if row.resolved_at else ""
        console.print(f"{ago(row.since)}, {row.times} times{over}: {row.what}", markup=False, style="bold")
        console.print(f"  {row.did}\n  → {row.advice}", markup=False)
