"""Commands for the keys that HTTP asks for."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from agent.cli.screen import AsJson, ago, connected, console, print_json, print_table

keys = typer.Typer(help="API keys for HTTP and the console: list, make, revoke, forget.")


def add_to(app: typer.Typer) -> None:
    app.add_typer(keys, name="keys")


@keys.callback(invoke_without_command=True)
def listed(context: typer.Context, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is not None:
        return
    with connected() as client:
        rows = client.keys()
    if as_json:
        print_json(rows)
        return
    print_table(
        ["name", "state", "user", "may", "made", "last used"],
        [
            [row.name, "revoked" if row.revoked_at else "alive", row.user_id or "all users",
             "read" if row.is_read_only else "read and write", ago(row.created_at), ago(row.last_used_at) or "never"]
            for row in rows
        ],
        empty="No keys. Make one: perdure keys make NAME",
    )  # fmt: skip


@keys.command()
def make(
    name: str,
    user: Annotated[str | None, typer.Option(help="It sees and makes only this user's sessions.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="It changes nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, this once. From the first one on, every call needs a key."""
    with connected() as client:
        key = client.make_key(name, user=user, read_only=read_only)
    if as_json:
        sys.stdout.write(json.dumps({"name": name, "key": key, "user_id": user, "is_read_only": read_only}) + "\n")
        return
    console.print(key, markup=False)
    print("Keep it: it is not shown again. Use it as: Authorization: Bearer KEY", file=sys.stderr)


@keys.command()
def revoke(name: str) -> None:
    """Have a key open nothing more, within seconds; sign-ins to the console with it neither."""
    with connected() as client:
        client.revoke_key(name)
    console.print("Revoked.")


@keys.command()
def forget(name: str) -> None:
    """Free the name of a revoked key. Without any key left, a service on loopback asks for none."""
    with connected() as client:
        client.forget_key(name)
    console.print("Forgotten.")
