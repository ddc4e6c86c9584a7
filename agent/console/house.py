"""Workers and dead letters: who is alive, what runs, what crashed, what waits for a word; and the drill."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from agent import keeper, process
from agent.api.caller import Asking, Store
from agent.api.house import check_sees_all, list_dead_letters
from agent.console.page import Form, Page, done, is_partial, render
from agent.log import log
from store import overview, sessions, supervision, workers
from store.errors import Conflict, NotAllowed, NotFound
from store.types import EventRow, WorkerRow

router = APIRouter(include_in_schema=False, route_class=Page, default_response_class=HTMLResponse)

LATELY = timedelta(minutes=30)
MOST_EVENTS = 40
LAST_WORDS_SECONDS = 0.3
"""So that the page which asked for the drill has its answer."""

TELLING = {
    "worker.died": "a worker died; its task is queued again",
    "worker.stopped": "a worker stopped as planned; its task is queued again",
    "restart.noticed": "the user was told",
    "task.resumed": "the task goes on from its records",
    "task.started": "a task began",
    "task.finished": "a task is done",
    "task.failed": "a task failed",
    "task.dead": "a task became a dead letter",
    "task.retried": "a dead letter is tried again",
    "task.isolated": "a suspect is tried apart",
    "task.acquitted": "a suspect is none any more",
    "task.stalled": "a step hung and was aborted",
    "effect.doubted": "an effect is in doubt",
    "breaker.tried": "a breaker lets one task try",
}
"""What of the journals is told here, and how."""


@router.get("/dead-letters")
@router.get("/workers")
async def show_house(request: Request, caller: Asking, store: Store) -> Response:
    letters = (await list_dead_letters(caller, store, limit=100))["items"]
    facts: dict[str, Any] = {"letters": letters, "sees_all": caller.user is None}
    if caller.user is None:
        facts |= await _look_around(store)
    return render(request, "house.html" if is_partial(request) else "workers.html", caller, **facts)


@router.post("/console/workers/{worker_id}/kill")
async def kill_worker(request: Request, worker_id: str, form: Form, caller: Asking, store: Store) -> Response:
    """A drill: kill -9 for a worker of this machine and this database."""
    if not request.app.state.drills:
        raise NotAllowed("drills are off; PERDURE_DRILLS=1 switches them on")
    await check_sees_all(caller)
    living = await store.try_once(workers.list_workers(living=True))
    row = next((each for each in living if each.worker_id == worker_id), None)
    if row is None:
        raise NotFound(f"there is no living worker {worker_id!r}")
    if process.identity(row.pid) != row.process:
        raise Conflict(f"{worker_id} runs on {row.host}, out of reach from here")
    if row.pid == os.getpid() and not keeper.is_kept():
        raise Conflict("this process serves the page, and nobody would start it again: use start --supervise")
    log.warning("a drill: kill -9 for %s, asked for by %s", worker_id, ascii(caller.name))
    asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, os.kill, row.pid, signal.SIGKILL)
    return done(request, f"kill -9 {row.pid}. Watch it below: nothing is lost.", "/workers")


async def _look_around(store: Store) -> dict[str, Any]:
    known = await store.try_once(workers.list_workers(limit=60))
    running = await store.try_once(overview.list_running())
    lately = await store.try_once(sessions.read_journal(None, since=datetime.now(UTC) - LATELY, limit=2000))
    living = [row for row in known if row.state in ("alive", "draining")]
    return {
        "living": living,
        "gone": [row for row in known if row not in living][:8],
        "running": {row.worker_id: [task for task in running if task.worker_id == row.worker_id] for row in living},
        "reach": {row.worker_id for row in living if _is_in_reach(row)},
        "crashes": await store.try_once(overview.list_crashes(limit=20)),
        "breakers": await store.try_once(supervision.list_breakers()),
        "alerts": await store.try_once(supervision.list_alerts()),
        "lately": [(event, _tell(event)) for event in reversed(lately) if event.kind in TELLING][:MOST_EVENTS],
    }


def _is_in_reach(row: WorkerRow) -> bool:
    is_here = process.identity(row.pid) == row.process
    return is_here and row.role == "worker" and (row.pid != os.getpid() or keeper.is_kept())


def _tell(event: EventRow) -> str:
    facts = event.data
    match event.kind:
        case "worker.died" | "worker.stopped":
            return f"{TELLING[event.kind]} ({facts.get('worker')})"
        case "restart.noticed":
            return f"{TELLING[event.kind]}: {facts.get('body')}"
        case "task.resumed" | "task.started":
            return f"{TELLING[event.kind]}, on {facts.get('worker')}"
        case "effect.doubted":
            return f"{facts.get('tool')} was started and has no recorded end: in doubt, policy “{facts.get('policy')}”"
        case _:
            return TELLING[event.kind]
