"""The first page, for people."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import cast

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, select_autoescape
from starlette.exceptions import HTTPException

from agent.api.caller import Store, bearer, identify
from agent.api.visit import ask_for_key
from store import sessions, tasks, workers

router = APIRouter(include_in_schema=False)


def open_pages() -> Environment:
    return Environment(loader=PackageLoader("agent", "console/templates"), autoescape=select_autoescape())


@router.get("/", response_class=HTMLResponse)
async def show_sessions(request: Request, store: Store) -> HTMLResponse:
    try:
        caller = await identify(request, await bearer(request))
    except HTTPException as refusal:
        if refusal.status_code != 401:
            raise
        return ask_for_key(request, status=401)
    pages = cast(Environment, request.app.state.pages)
    page = pages.get_template("sessions.html").render(
        sessions=await store.try_once(sessions.list_sessions(user=caller.user, limit=50)),
        tasks=await store.try_once(tasks.list_tasks(user=caller.user, limit=20)),
        counts=await store.try_once(tasks.count_by_status()) if caller.user is None else {},
        workers=await store.try_once(workers.list_workers(living=True)) if caller.user is None else [],
    )
    return HTMLResponse(page, headers={"Refresh": "3"})


@router.get("/console.css")
async def read_style() -> Response:
    return Response(_style(), media_type="text/css")


@cache
def _style() -> str:
    return files("agent").joinpath("console", "console.css").read_text("utf-8")
