"""Whether this process lives and can take work."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from store import workers
from store.database import Database
from store.errors import PerdureError


async def look(database: Database, is_ready: Callable[[], bool]) -> tuple[int, dict[str, str]]:
    """The answer of /readyz: its status and its body."""
    if not is_ready():
        return 503, {"status": "stopping"}
    try:
        await database.try_once(workers.ping())
    except PerdureError as error:
        return 503, {"status": "waiting for Postgres", "detail": str(error)}
    return 200, {"status": "ready"}


def build_health(database: Database, is_ready: Callable[[], bool]) -> Starlette:
    """All that a worker without a console serves: nothing here is worth guarding, and probes use any host name."""

    async def livez(_: Request) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def readyz(_: Request) -> JSONResponse:
        status, body = await look(database, is_ready)
        return JSONResponse(body, status)

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz)])
