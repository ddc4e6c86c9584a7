"""HTTP: whether this process lives and can take work, and a first page for people."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from importlib.resources import files

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response
from jinja2 import Environment, PackageLoader, select_autoescape

from store import sessions, tasks, workers
from store.database import Database
from store.errors import PerdureError

POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]


def build_api(database: Database, is_ready: Callable[[], bool], *, console: bool, keys: Sequence[str]) -> FastAPI:
    app = FastAPI(title="Perdure", docs_url=None, redoc_url=None)
    if not keys:
        # Without keys only this machine is served; a page elsewhere must not reach us under another name.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK)

    def require_key(request: Request) -> None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if keys and not any(secrets.compare_digest(given.encode(), key.encode()) for key in keys):
            raise HTTPException(401, "an API key is required", {"WWW-Authenticate": "Bearer"})

    @app.get("/livez")
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        if not is_ready():
            return JSONResponse({"status": "stopping"}, 503)
        try:
            await database.try_once(workers.ping())
        except PerdureError as error:
            return JSONResponse({"status": "waiting for Postgres", "detail": str(error)}, 503)
        return JSONResponse({"status": "ready"})

    if console:
        _add_first_page(app, database, require_key)
    return app


def _add_first_page(app: FastAPI, database: Database, require_key: Callable[[Request], None]) -> None:
    pages = Environment(loader=PackageLoader("agent", "console/templates"), autoescape=select_autoescape())
    style = files("agent").joinpath("console", "console.css").read_text("utf-8")

    @app.get("/", response_class=HTMLResponse, include_in_schema=False, dependencies=[Depends(require_key)])
    async def first_page() -> HTMLResponse:
        page = pages.get_template("sessions.html").render(
            sessions=await database.try_once(sessions.list_sessions(limit=50)),
            tasks=await database.try_once(tasks.list_tasks(limit=20)),
            counts=await database.try_once(tasks.count_by_status()),
            workers=await database.try_once(workers.list_workers(living=True)),
        )
        return HTMLResponse(page, headers={"Content-Security-Policy": POLICY, "Refresh": "3"})

    @app.get("/console.css", include_in_schema=False)
    async def stylesheet() -> Response:
        return Response(style, media_type="text/css")
