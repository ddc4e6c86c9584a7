"""Whether this process lives and can take work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from agent.scrape import scrape
from store import workers
from store.database import Database
from store.errors import PerdureError

MayScrape = Callable[[Mapping[str, str]], Awaitable[bool]]
"""Whether a request with these headers may read the metrics."""

CHALLENGE = {"WWW-Authenticate": "Bearer"}


async def look(database: Database, is_ready: Callable[[], bool]) -> tuple[int, dict[str, str]]:
    """The answer of /readyz: its status and its body."""
    if not is_ready():
        return 503, {"status": "stopping"}
    try:
        await database.try_once(workers.ping())
    except PerdureError as error:
        return 503, {"status": "waiting for Postgres", "detail": str(error)}
    return 200, {"status": "ready"}


def build_health(database: Database, is_ready: Callable[[], bool], may_scrape: MayScrape) -> Starlette:
    """All that a worker without a console serves. Probes ask by any host name; metrics are for those who may."""

    async def livez(_: Request) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def readyz(_: Request) -> JSONResponse:
        status, body = await look(database, is_ready)
        return JSONResponse(body, status)

    async def metrics(request: Request) -> Response:
        if not await may_scrape(request.headers):
            return PlainTextResponse("this needs an API key: Authorization: Bearer KEY\n", 401, CHALLENGE)
        body, media_type = await scrape(database, request.headers.get("accept"))
        return Response(body, media_type=media_type)

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)])
