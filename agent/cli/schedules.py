"""Commands for inputs that come by the clock."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated, cast
from zoneinfo import ZoneInfo

import typer

from agent.cli.screen import AsJson, brief, coloured, connected, console, living_workers, print_json, print_table
from store.types import Missed, ScheduleRow

schedules = typer.Typer(help="Inputs that come by the clock: list, add, remove.")


def add_to(app: typer.Typer) -> None:
    app.add_typer(schedules, name="schedule")


@schedules.callback(invoke_without_command=True)
def listed(context: typer.Context, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is not None:
        return
    with connected() as client:
        rows = client.schedules()
    if as_json:
        print_json(rows)
        return
    print_table(
        ["name", "when", "next", "last", "status", "missed", "agent", "session", "user", "input"],
        [
            [row.name, when(row), local(row.next_at, row) or "over", local(row.last_at, row), coloured(row.last_status),
             row.missed, row.agent, row.session_id or "a new one", row.user_id or "", brief(row.input, 40)]
            for row in rows
        ],
        empty="No schedules.",
    )  # fmt: skip
    for row in rows:
        if row.problem:
            console.print(row.problem, markup=False, style="red")


@schedules.command()
def add(
    name: str,
    agent: str,
    text: str,
    cron: Annotated[str | None, typer.Option(help="Five fields, or six with seconds first: '0 9 * * 1'.")] = None,
    at: Annotated[str | None, typer.Option(help="Once, at this moment: 2026-12-01T09:00:00Z.")] = None,
    timezone: Annotated[str, typer.Option(help="Of the cron expression, and of a moment without an offset.")] = "UTC",
    session: Annotated[str | None, typer.Option(help="Always in this session; else each run is a new one.")] = None,
    user: Annotated[str | None, typer.Option(help="On behalf of this user.")] = None,
    missed: Annotated[
        str, typer.Option(help="What fell into a time without any worker: skip it, or run once for all of it.")
    ] = "skip",
) -> None:
    """Have an agent given this input by the clock."""
    with connected() as client:
        row = client.schedule(
            name, agent, text, cron=cron, at=at, timezone=timezone, session=session, user=user,
            missed=cast(Missed, missed),
        )  # fmt: skip
        console.print(f"Schedule {row.name} runs next at {local(row.next_at, row)}.", markup=False)
        if not living_workers(client):
            print("No worker is alive, and it needs one then. Start one: perdure start", file=sys.stderr)


@schedules.command()
def remove(name: str) -> None:
    """Have it run no more; what it has enqueued stays."""
    with connected() as client:
        client.unschedule(name)
    console.print("Removed.")


def when(row: ScheduleRow) -> str:
    if row.cron is None:
        return "once"
    return row.cron if row.timezone == "UTC" else f"{row.cron} {row.timezone}"


def local(moment: datetime | None, row: ScheduleRow) -> str:
    return "" if moment is None else f"{moment.astimezone(ZoneInfo(row.timezone)):%Y-%m-%d %H:%M:%S %Z}"
