"""The application: routers, and around them who is let in, what they may bring, and what every answer carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from agent import tracing
from agent.api import (
    continuity,
    events,
    files,
    house,
    messages,
    probes,
    problem,
    scrape,
    sessions,
    spending,
    tasks,
)
from agent.api.body import LARGEST, LONGEST, Body
from agent.api.caller import identify
from agent.api.door import SAFE, Door
from agent.api.frame import Frame
from agent.api.meter import Meter
from agent.keyring import Keyring
from agent.protocols import ag_ui, mcp, responses, vercel
from store.bell import Bell
from store.database import Database

CALLS = (
    sessions.router,
    messages.router,
    continuity.router,
    files.router,
    events.router,
    tasks.router,
    house.router,
    spending.router,
)
PROTOCOLS = (ag_ui.router, vercel.router, responses.router)
"""What programs call under /v1; all of it needs a key, where keys are needed."""

TAGS = [
    {"name": "sessions", "description": "One continuous line of work between an agent and a user."},
    {"name": "messages", "description": "What is said in a session."},
    {"name": "events", "description": "What happens in a session, as it happens."},
    {"name": "continuity", "description": "Notices of interruptions, and handoffs."},
    {"name": "files", "description": "The files of a session's workspace."},
    {"name": "tasks", "description": "One input to a session, executed as exactly one DBOS workflow of the same id."},
    {"name": "house", "description": "Agents, workers, dead letters, alerts and breakers."},
    {"name": "spending", "description": "Tokens and money: what was used, and what may be."},
    {"name": "health", "description": "For probes; no key is asked for."},
]


def build_api(
    database: Database,
    is_ready: Callable[[], bool],
    keyring: Keyring,
    bell: Bell,
    *,
    hosts: Sequence[str] = (),
    version: str = "source",
    largest_body: int = LARGEST,
    longest_body: float = LONGEST,
) -> FastAPI:
    app = FastAPI(
        title="Perdure",
        version=version,
        description="Agents whose sessions outlive every process that ever worked on them.",
        openapi_tags=TAGS,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
        telemetry={
            "tracing": tracing.is_on(),
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
            "exclude": lambda scope: scope.get("method") in SAFE,  # what only reads, or is followed for hours
        },
    )
    app.state.database, app.state.keyring, app.state.is_ready = database, keyring, is_ready
    app.state.bell = bell
    problem.add_to(app)
    for router in (*CALLS, *PROTOCOLS):
        app.include_router(router, dependencies=[Depends(identify)])
    for router in (mcp.router, probes.router, scrape.router):
        app.include_router(router)
    # The last added is the outermost.
    app.add_middleware(Body, largest=largest_body, longest=longest_body)
    app.add_middleware(Door, hosts=hosts, needs_key=keyring.needs_key)
    app.add_middleware(Frame)
    app.add_middleware(Meter)
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


def _describe(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
        )
        problem.describe(schema)
        app.openapi_schema = schema
    return app.openapi_schema
