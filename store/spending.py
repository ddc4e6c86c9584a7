"""What models used and cost, and how much of it is allowed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from decimal import Decimal

from psycopg.types.json import Jsonb

from store.plain import is_text
from store.statement import Rows, Statement, all_of, count, nothing, query, value
from store.types import BudgetRow, Limit, OwnerToken, Period, Scope, Spent, TaskId, UsageBy, UsageRow

AMOUNT = re.compile(r"(?:\$\s*)?(\d+(?:\.\d+)?)\s*(usd|tokens)?\s*(?:/\s*(day))?", re.IGNORECASE)
EXAMPLE = "as in 5 usd, 2 usd/day or 100000 tokens/day, separated by commas"


def spend(task: str, items: Sequence[Spent]) -> Statement[str | None]:
    """Says which agent's task it is, if it is still there."""

    def agent(rows: Rows) -> str | None:
        return value(rows) if rows else None

    return Statement(query("spend"), {"task": task, "items": Jsonb(told(items))}, agent)


def told(items: Sequence[Spent]) -> list[dict[str, object]]:
    return [item.model_dump(mode="json", exclude_none=True) for item in items]


def read_usage(
    by: UsageBy, *, since: date, user: str | None = None, session: str | None = None, limit: int = 1000
) -> Statement[list[UsageRow]]:
    wanted = {"by": by, "since": since, "user": user, "session": session, "limit": limit}
    return Statement(query("read_usage"), wanted, all_of(UsageRow))


def stop_for_budget(task: TaskId, owner: OwnerToken) -> Statement[bool]:
    return Statement(query("stop_for_budget"), {"task": task, "owner": owner}, value)


def release_budgets() -> Statement[int]:
    """How many sessions go on."""
    return Statement(query("release_budgets"), {}, count)


def set_budget(
    scope: Scope, name: str, period: Period, *, cost_usd: Decimal | None, tokens: int | None
) -> Statement[None]:
    named = name if is_text(name) else ""
    wanted = {"scope": scope, "name": named, "period": period, "cost": cost_usd, "tokens": tokens}
    return Statement(query("set_budget"), wanted, nothing)


def remove_budget(scope: Scope, name: str, period: Period | None) -> Statement[None]:
    named = name if is_text(name) else ""
    return Statement(query("remove_budget"), {"scope": scope, "name": named, "period": period}, nothing)


def list_budgets(scope: Scope | None = None, name: str | None = None) -> Statement[list[BudgetRow]]:
    return Statement(query("list_budgets"), {"scope": scope, "name": name}, all_of(BudgetRow))


def set_defaults(session: Sequence[Limit], user: Sequence[Limit]) -> Statement[None]:
    """The budgets of every session and user that has none of its own."""
    given = [{"scope": "session", **limit.model_dump(mode="json")} for limit in session]
    given += [{"scope": "user", **limit.model_dump(mode="json")} for limit in user]
    return Statement(query("set_default_budgets"), {"given": Jsonb(given)}, nothing)


def read_limits(given: str) -> tuple[Limit, ...]:
    """Amounts as people write them, at most one per period; raises ValueError with an example."""
    limits: dict[Period, Limit] = {}
    for part in filter(None, (part.strip() for part in given.split(","))):
        found = AMOUNT.fullmatch(part)
        if found is None or ((found[2] or "usd").lower() == "tokens" and "." in found[1]):
            raise ValueError(EXAMPLE)
        period: Period = "day" if found[3] else "total"
        known = limits.get(period, Limit(period=period))
        if (found[2] or "usd").lower() == "tokens":
            limits[period] = known.model_copy(update={"tokens": int(found[1])})
        else:
            limits[period] = known.model_copy(update={"cost_usd": Decimal(found[1])})
    return tuple(limits.values())
