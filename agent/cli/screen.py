"""How rows look on a terminal: aligned, coloured only for people, or JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent.client import AgentClient
from agent.config import read_settings
from agent.home import open_home
from agent.process import is_provably_gone
from store import schema
from store.errors import Unusable
from store.types import Row, WorkerRow

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Limit = Annotated[int, typer.Option("--limit", "-n", help="At most this many.", min=1)]

COLOURS = {
    "done": "green", "running": "cyan", "queued": "blue", "waiting": "yellow", "failed": "red", "dead": "red",
    "alive": "green", "idle": "dim", "draining": "yellow", "stopped": "dim", "returned": "green", "unknown": "yellow",
}  # fmt: skip

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

IDS = ("session", "task", "status", "state")
"""Columns that are copied or scanned, so never cut."""

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)


@contextmanager
def connected() -> Iterator[AgentClient]:
    """A client of the database the settings name."""
    with open_home(read_settings()) as home:
        if not schema.is_current(home.url):
            raise Unusable(
                "The database has no Perdure schema of this release yet: run perdure migrate, or perdure start."
            )
        with AgentClient(home.url) as client:
            yield client


def living_workers(client: AgentClient) -> list[WorkerRow]:
    """Workers that beat in time and whose process is not known to be gone."""
    return [row for row in client.living_workers() if not is_provably_gone(row.process, row.pid)]


def print_json(rows: Sequence[Row] | Row) -> None:
    plain = rows.model_dump(mode="json") if isinstance(rows, Row) else [row.model_dump(mode="json") for row in rows]
    sys.stdout.write(json.dumps(plain, ensure_ascii=False, indent=2) + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    if not rows:
        console.print(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ignore" if column in IDS else "ellipsis")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(harmless(str(cell))) for cell in row))
    console.print(table)


def coloured(word: str | None) -> Text:
    return Text(word or "", style=COLOURS.get(word or "", ""))


def brief(value: object, width: int = 60) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) if value is not None else ""
    text = harmless(" ".join(text.split()))
    return text if len(text) <= width else text[: width - 1] + "…"


def harmless(text: str) -> str:
    """Text that cannot command the terminal it is shown on."""
    return CONTROL.sub("�", text)


def ago(moment: datetime | None) -> str:
    if moment is None:
        return ""
    seconds = max(0, int((datetime.now(UTC) - moment).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def took(start: datetime | None, end: datetime | None) -> str:
    if start is None or end is None:
        return ""
    seconds = (end - start).total_seconds()
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
