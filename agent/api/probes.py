"""Whether this process lives and can take work; asked without a key."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from agent.api.answers import Ready
from agent.api.caller import Store
from agent.health import look

router = APIRouter(tags=["health"])


@router.get("/livez", response_model=Ready, response_model_exclude_none=True)
async def check_alive() -> Ready:
    """Say that this process lives."""
    return Ready(status="alive")


@router.get("/readyz", response_model=Ready, responses={503: {"model": Ready, "description": "Not now."}})
async def check_ready(request: Request, store: Store) -> JSONResponse:
    """Say whether this process can take work."""
    status, body = await look(store, request.app.state.is_ready)
    return JSONResponse(body, status)
