"""What went wrong, as RFC 9457 says it; the one place where an error becomes an answer."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from store.errors import (
    Conflict,
    InvalidInput,
    NotAllowed,
    NotFound,
    PerdureError,
    TooLarge,
    Unreachable,
)
from store.plain import readable

MEDIA_TYPE = "application/problem+json"

STATUSES: dict[type[PerdureError], int] = {
    InvalidInput: 422,
    NotFound: 404,
    NotAllowed: 403,
    Conflict: 409,
    TooLarge: 413,
    Unreachable: 503,
}


TITLES = {
    400: "Bad request",
    401: "Key needed",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    413: "Too large",
    415: "Not JSON",
    422: "Invalid",
    500: "Unexpected",
    503: "Unavailable",
}
"""Ours, and not Python's, which differ from release to release: a problem's type is made of its title."""

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class Fault(BaseModel):
    """One thing that is wrong with a request."""

    where: str = Field(description="The place in the request, as in `body.input`.")
    what: str


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:perdure:problem:not-found",
                    "title": "Not found",
                    "status": 404,
                    "detail": "There is no session 'acme-17'.",
                    "instance": "/v1/sessions/acme-17",
                    "request_id": "0b6f2c1e9d5a4c52b3f7d6a1c8e90f11",
                }
            ]
        }
    )

    type: str = Field(description="Which problem this is; the same for every occurrence.")
    title: str
    status: int
    detail: str = Field(description="One sentence about this occurrence.")
    instance: str = Field(description="The path that was asked for.")
    request_id: str = Field(description="Also in the header X-Request-Id, and in the service's log.")
    errors: list[Fault] | None = Field(None, description="With status 422: each thing that is wrong.")


def answer(
    scope: Scope,
    status: int,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    errors: list[Fault] | None = None,
) -> JSONResponse:
    title = TITLES.get(status) or HTTPStatus(status).phrase
    problem = Problem(
        type=f"urn:perdure:problem:{title.lower().replace(' ', '-')}",
        title=title,
        status=status,
        detail=readable(_sentence(detail)),
        instance=quote(scope["path"], errors="replace"),
        request_id=scope.get("state", {}).get("request_id", ""),
        errors=errors,
    )
    body = problem.model_dump(exclude_none=True)
    if scope["path"].startswith("/v1/responses"):  # where OpenAI's clients look for it
        body["error"] = {"message": problem.detail, "type": title, "code": problem.type, "param": None}
    return JSONResponse(body, status, dict(headers or {}), media_type=MEDIA_TYPE)


def add_to(app: FastAPI) -> None:
    @app.exception_handler(PerdureError)
    async def refuse(request: Request, error: PerdureError) -> JSONResponse:
        status = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)
        headers = {"Retry-After": "1"} if status == 503 else None
        return answer(request.scope, status, str(error), headers=headers)

    @app.exception_handler(RequestValidationError)
    async def name_faults(request: Request, error: RequestValidationError) -> JSONResponse:
        faults = [
            Fault(where=readable(".".join(str(part) for part in each["loc"])), what=readable(each["msg"]))
            for each in error.errors()[:20]
        ]
        named = "; ".join(f"{each.where}: {each.what}" for each in faults[:3])
        return answer(request.scope, 422, f"not as described: {named}", errors=faults)

    @app.exception_handler(HTTPException)
    async def pass_on(request: Request, error: HTTPException) -> JSONResponse:
        detail, headers = str(error.detail), error.headers
        if error.status_code == 404 and detail == HTTPStatus.NOT_FOUND.phrase:
            detail = "Nothing is served at this path; /openapi.json lists what is"
        elif error.status_code == 405:
            detail = f"{request.method} is not offered at this path"
            headers = {"Allow": ", ".join(_offered(app, request))}
        return answer(request.scope, error.status_code, detail, headers=headers)


def describe(schema: dict[str, Any]) -> None:
    """Every operation of an OpenAPI document may answer with a problem, and says so."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, operations in schema.get("paths", {}).items():
        for method, operation in operations.items():
            responses = cast(dict[str, Any], operation["responses"])
            responses.pop("422", None)
            if path.startswith("/v1/"):
                for status in _expected(path, method):
                    responses[status] = {"description": TITLES[int(status)], "content": content}
            responses["default"] = {"description": "What went wrong, if anything did.", "content": content}
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    components.pop("HTTPValidationError", None)
    components.pop("ValidationError", None)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    components.update(problem.pop("$defs", {}))
    components["Problem"] = problem


def _offered(app: FastAPI, request: Request) -> list[str]:
    """All methods of a path, of which each may have a route of its own."""

    def is_served(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in app.router.routes)

    return [method for method in METHODS if is_served(method)]


def _expected(path: str, method: str) -> list[str]:
    found = ["401", "422", "503"]
    if "{" in path:
        found.append("404")
    if method != "get":
        found += ["403", "409", "413", "415"]
    return sorted(found)


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
