"""The console: pages for people, added to the API whose acts they call."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Any, cast

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from agent.api.app import build_api
from agent.console import acts, house, overview, session, visit
from agent.console.page import open_pages

KINDS = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "htmx.LICENSE": "text/plain",
    "icon.svg": "image/svg+xml",
}
FOREVER = "public, max-age=31536000, immutable"

router = APIRouter(include_in_schema=False)


def build_site(*given: Any, drills: bool = False, **options: Any) -> FastAPI:
    """What `build_api` builds, with the console in front of it. With drills, it may kill workers of this machine."""
    app = build_api(*given, **options)
    statics = {name: files("agent").joinpath("console", "static", name).read_bytes() for name in KINDS}
    stamp = hashlib.sha256(b"".join(statics.values())).hexdigest()[:12]
    app.state.statics, app.state.drills, app.state.pages = statics, drills, open_pages()
    app.state.pages.globals["stamp"] = stamp
    for each in (router, visit.router, overview.router, overview.live, session.router, acts.router, house.router):
        app.include_router(each)
    return app


@router.get("/console/static/{name}")
async def read_static(request: Request, name: str) -> Response:
    statics = cast(dict[str, bytes], request.app.state.statics)
    if name not in statics:
        raise HTTPException(404)
    caching = FOREVER if "v" in request.query_params else "no-cache"
    return Response(statics[name], media_type=KINDS[name], headers={"Cache-Control": caching})
