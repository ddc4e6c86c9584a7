"""What keeps the house: agents, workers, dead letters, alerts, breakers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from agent.api.answers import AgentInfo, Alert, Breaker, DeadLetter, Worker
from agent.api.caller import Asking, Store
from agent.api.page import Cursor, Limit, Listing, Page
from store import supervision, workers
from store.errors import NotAllowed

router = APIRouter(prefix="/v1", tags=["house"])

AGENTS = Listing("agents", str)
LETTERS = Listing("dead letters", tuple[datetime, str])
WORKERS = Listing("workers", tuple[datetime, str])


async def check_sees_all(caller: Asking) -> None:
    if caller.user is not None:
        raise NotAllowed("this key sees the sessions of one user, and this is about all of them")


@router.get("/agents", response_model=Page[AgentInfo])
async def list_agents(caller: Asking, store: Store, limit: Limit = 100, cursor: Cursor = None) -> dict[str, Any]:
    """List the agents that can be given inputs."""
    rows = await store.try_once(workers.list_agents(after=AGENTS.after(cursor), limit=limit + 1))
    return AGENTS.page(rows, limit, lambda row: row.name)


@router.get("/dead-letters", response_model=Page[DeadLetter])
async def list_dead_letters(caller: Asking, store: Store, limit: Limit = 50, cursor: Cursor = None) -> dict[str, Any]:
    """List tasks that will not be tried again until a person says so, newest first."""
    rows = await store.try_once(
        supervision.list_dead_letters(user=caller.user, limit=limit + 1, after=LETTERS.after(cursor))
    )
    return LETTERS.page(rows, limit, lambda row: (row.at, row.task_id))


@router.get("/workers", response_model=Page[Worker], dependencies=[Depends(check_sees_all)])
async def list_workers(
    store: Store,
    living: Annotated[bool, Query(description="Only those that are not known to have ended.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """List the processes that execute tasks, newest first."""
    rows = await store.try_once(workers.list_workers(living=living, limit=limit + 1, after=WORKERS.after(cursor)))
    return WORKERS.page(rows, limit, lambda row: (row.started_at, row.worker_id))


@router.get("/alerts", response_model=list[Alert], dependencies=[Depends(check_sees_all)])
async def list_alerts(
    store: Store, resolved: Annotated[bool, Query(description="Also those that are over.")] = False
) -> Any:
    """List the newest 200 things a person should know."""
    return await store.try_once(supervision.list_alerts(all_of_them=resolved))


@router.get("/breakers", response_model=list[Breaker], dependencies=[Depends(check_sees_all)])
async def list_breakers(store: Store) -> Any:
    """List what has crashed too often and waits."""
    return await store.try_once(supervision.list_breakers())
