"""The command line. Each command is a sentence in; an error is a sentence out, with the next thing to try."""

from __future__ import annotations

import sys

import typer

from agent.cli import care, govern, keys, letters, look, money, schedules, serve, talk
from store.errors import Misconfigured, NotFound, PerdureError, Refused, TaskNotDone, Unreachable

app = typer.Typer(
    name="perdure",
    help="Agents whose sessions outlive every process that ever worked on them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for module in (serve, talk, look, govern, schedules, letters, care, keys, money):
    module.add_to(app)


def main() -> None:
    try:
        app()
    except PerdureError as error:
        print(f"perdure: {sentence(error)}", file=sys.stderr)
        print(f"Try: {next_command(error)}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if text.endswith((".", "!", "?")) else f"{text}."


def next_command(error: PerdureError) -> str:
    match error:
        case NotFound():
            return "perdure sessions, or perdure tasks"
        case Unreachable():
            return "perdure doctor"
        case Refused():
            return "perdure send --help"
        case TaskNotDone():
            return "perdure steps TASK"
        case Misconfigured():
            return "perdure doctor"
        case _:
            return "perdure doctor"
