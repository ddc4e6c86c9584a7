"""Commands about what models used and cost, and how much of it is allowed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Literal, cast, get_args

import typer

from agent.cli.screen import AsJson, Limit, connected, console, print_json, print_table
from store.types import BudgetRow, Period, Scope, UsageBy

budgets = typer.Typer(help="How much sessions and users may spend: list, set, remove.")

ScopeIn = Annotated[str, typer.Argument(metavar="session|user", help="What the budget is of.")]
Usd = Annotated[float | None, typer.Option(help="US dollars.")]


def add_to(app: typer.Typer) -> None:
    app.command()(usage)
    app.add_typer(budgets, name="budget")


def usage(
    by: Annotated[str, typer.Option(help="task, session, user, agent, model, purpose or day.")] = "agent",
    days: Annotated[int, typer.Option(help="Since so many days ago.", min=0, max=36_500)] = 30,
    user: Annotated[str | None, typer.Option(help="Only this user's.")] = None,
    session: Annotated[str | None, typer.Option(help="Only this session's.")] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """Show tokens and money, as the models reported them and at the prices of that moment."""
    if by not in get_args(UsageBy):
        raise typer.BadParameter(f"{by!r}; allowed are {', '.join(get_args(UsageBy))}", param_hint="--by")
    since = datetime.now(UTC).date() - timedelta(days=days)
    with connected() as client:
        rows = client.usage(cast(UsageBy, by), since=since, user=user, session=session, limit=limit)
    if as_json:
        print_json(rows)
        return
    print_table(
        [by, "requests", "input", "output", "cached", "USD", "without a price"],
        [
            [row.name or "(none)", row.requests, row.input_tokens, row.output_tokens, row.cache_read_tokens,
             money(row.cost_usd), row.unpriced_requests or ""]
            for row in rows
        ],
        empty="Nothing was used.",
    )  # fmt: skip


@budgets.callback(invoke_without_command=True)
def list_of_budgets(context: typer.Context, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is None:
        show_budgets(as_json=as_json)


@budgets.command(name="list")
def listed(as_json: AsJson = False) -> None:
    """List budgets and what is spent of them."""
    show_budgets(as_json=as_json)


def show_budgets(*, as_json: bool) -> None:
    with connected() as client:
        rows = client.budgets()
    if as_json:
        print_json(rows)
        return
    print_table(
        ["of", "per", "USD", "spent", "tokens", "used", "state"],
        [
            [whose(row), row.period, money(row.cost_usd), money(row.spent_usd) if row.name else "",
             row.tokens if row.tokens is not None else "", row.spent_tokens if row.name else "",
             "used up" if row.is_used_up else ""]
            for row in rows
        ],
        empty="No budgets. Set one: perdure budget set user ana --usd 5 --per day",
    )  # fmt: skip


@budgets.command(name="set")
def set_one(
    scope: ScopeIn,
    name: str,
    usd: Usd = None,
    tokens: Annotated[int | None, typer.Option(help="Input and output together.", min=0)] = None,
    per: Annotated[str, typer.Option(help="day (UTC) or total.")] = "total",
) -> None:
    """Let a session or a user spend this much. What waits for a budget goes on when it is raised."""
    with connected() as client:
        client.set_budget(
            checked(scope), name, usd=None if usd is None else Decimal(str(usd)), tokens=tokens, per=period(per)
        )
    console.print("Set.")


@budgets.command()
def remove(
    scope: ScopeIn, name: str, per: Annotated[str | None, typer.Option(help="Only that per day, or total.")] = None
) -> None:
    """Remove a budget. The default of the settings then holds, if there is one."""
    with connected() as client:
        client.remove_budget(checked(scope), name, per=None if per is None else period(per))
    console.print("Removed.")


def checked(scope: str) -> Scope:
    if scope not in get_args(Scope):
        raise typer.BadParameter(f"{scope!r}; allowed are session and user")
    return cast(Scope, scope)


def period(per: str) -> Period:
    if per not in get_args(Period):
        raise typer.BadParameter(f"{per!r}; allowed are day and total", param_hint="--per")
    return cast(Literal["day", "total"], per)


def whose(row: BudgetRow) -> str:
    return f"{row.scope} {row.name}" if row.name else f"every {row.scope} without its own"


def money(amount: Decimal | None) -> str:
    return "" if amount is None else f"{amount:.4f}"
