"""What models used and cost, and how much of it is allowed."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import ConfigDict, Field

from agent.api.answers import Budget, Usage
from agent.api.caller import Asking, Store, user_for
from agent.api.house import check_sees_all
from agent.api.words import NAME, Name, Request, Word
from store import spending
from store.errors import InvalidInput
from store.types import Period, Scope, UsageBy

router = APIRouter(prefix="/v1", tags=["spending"])

DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"


class NewBudget(Request):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"scope": "user", "name": "ana", "period": "day", "cost_usd": 5}]}
    )

    scope: Scope
    name: Name
    period: Period = "total"
    cost_usd: Decimal | None = Field(None, ge=0, le=1_000_000_000, description="US dollars.")
    tokens: int | None = Field(None, strict=True, ge=0, le=10**15, description="Input and output together.")


@router.get("/usage", response_model=list[Usage])
async def read_usage(
    caller: Asking,
    store: Store,
    by: UsageBy = "agent",
    since: Annotated[
        str | None, Query(pattern=DAY, description="A day (UTC), as in 2026-11-18; else the last 30 days.")
    ] = None,
    user: Word = None,
    session: Word = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Any:
    """Sum up tokens and money: as the models reported them, at the prices of that moment. Dearest first, days newest
    first."""
    start = _day(since) if since else datetime.now(UTC).date() - timedelta(days=30)
    whose = user_for(caller, user)
    return await store.try_once(spending.read_usage(by, since=start, user=whose, session=session, limit=limit))


@router.get("/budgets", response_model=list[Budget], dependencies=[Depends(check_sees_all)])
async def list_budgets(store: Store) -> Any:
    """List budgets and what is spent of them. An empty name stands for all that have none of their own."""
    return await store.try_once(spending.list_budgets())


@router.put("/budgets", status_code=204, dependencies=[Depends(check_sees_all)])
async def set_budget(body: NewBudget, store: Store) -> None:
    """Let a session or a user spend this much per day (UTC) or in all. What waits for a budget goes on when it is
    raised."""
    if body.cost_usd is None and body.tokens is None:
        raise InvalidInput("a budget is an amount of money or of tokens: cost_usd, tokens or both")
    await store.try_once(
        spending.set_budget(body.scope, body.name, body.period, cost_usd=body.cost_usd, tokens=body.tokens)
    )


@router.delete("/budgets", status_code=204, dependencies=[Depends(check_sees_all)])
async def remove_budget(
    store: Store, scope: Scope, name: Annotated[str, Query(max_length=200, pattern=NAME)], period: Period | None = None
) -> None:
    """Remove a budget; without a period, all of that name."""
    await store.try_once(spending.remove_budget(scope, name, period))


def _day(written: str) -> date:
    try:
        return date.fromisoformat(written)
    except ValueError as error:
        raise InvalidInput(f"there is no day {written}") from error
