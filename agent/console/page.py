"""A page: rendered from a template, for whoever asks; and what is shown when there is none to show."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Annotated, Any, cast
from urllib.parse import parse_qs, quote

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from agent.api.caller import Asking
from agent.api.problem import STATUSES
from agent.console import words
from agent.keyring import Caller
from store.errors import InvalidInput, PerdureError

MOST_FIELDS = 50


def open_pages() -> Environment:
    pages = Environment(
        loader=PackageLoader("agent", "console/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters.update(
        segment=lambda given: quote(str(given), safe=""),
        span=words.span,
        tokens=words.tokens,
        size=words.size,
        plain=plain,
        clock=lambda moment: moment.astimezone(UTC).strftime("%H:%M:%S"),
        day=lambda moment: moment.astimezone(UTC).strftime("%d %b %H:%M"),
    )
    pages.filters["iso"] = lambda moment: moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return pages


def plain(value: Any, most: int = 20_000) -> str:
    """A value for people to read: text as it is, anything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)
    return text if len(text) <= most else f"{text[:most]}\n… {len(text) - most} characters more; the API has all of it"


def render(request: Request, template: str, caller: Caller | None, http: int = 200, **facts: Any) -> HTMLResponse:
    pages = cast(Environment, request.app.state.pages)
    now = datetime.now(UTC)
    text = pages.get_template(template).render(
        caller=caller,
        can_act=caller is not None and not caller.is_read_only,
        is_signed_in=caller is not None and "perdure_console" in request.cookies,
        drills=request.app.state.drills,
        version=request.app.version,
        now=now,
        ago=lambda moment: words.ago(moment, now),
        **facts,
    )
    return HTMLResponse(text, http)


def is_partial(request: Request) -> bool:
    """Whether htmx asks, for a piece of a page it already has."""
    return "hx-request" in request.headers


def done(request: Request, told: str, then: str) -> Response:
    """After an act: a word for those whose page follows by itself, and a page for the others."""
    if is_partial(request):
        return render(request, "told.html", None, told=told, is_problem=False)
    return Response(status_code=303, headers={"Location": then})


def go(request: Request, where: str) -> Response:
    return Response(
        status_code=204 if is_partial(request) else 303,
        headers={"HX-Redirect" if is_partial(request) else "Location": where},
    )


class Page(APIRoute):
    """What goes wrong here is told to a person."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except PerdureError as error:
                status = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)
                return refuse(request, status, str(error))
            except (RequestValidationError, ValidationError) as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                return refuse(request, 422, f"{where}: {first['msg']}")
            except HTTPException as error:
                return refuse(request, error.status_code, str(error.detail))

        return answer


def refuse(request: Request, status: int, detail: str) -> Response:
    told = detail[:1].upper() + detail[1:] + ("" if detail.endswith((".", "!", "?")) else ".")
    if is_partial(request):
        response = render(request, "told.html", None, status, told=told, is_problem=True)
        response.headers["HX-Retarget"], response.headers["HX-Reswap"] = "#told", "innerHTML"
        if status == 401:
            response.headers["HX-Redirect"] = "/console/sign-in"
        return response
    if status == 401:
        return ask_for_key(request, status=401)
    return render(request, "problem.html", None, status, told=told, code=status)


def ask_for_key(request: Request, *, status: int, told: str = "") -> HTMLResponse:
    response = render(request, "sign_in.html", None, status, told=told)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def read_form(request: Request, caller: Asking) -> dict[str, str]:
    """The fields of a form that are filled in, once it is clear who sent it."""
    try:
        fields = parse_qs((await request.body()).decode("utf-8"), max_num_fields=MOST_FIELDS)
    except ValueError:
        raise InvalidInput("this is no form") from None
    return {name: values[-1].replace("\r\n", "\n") for name, values in fields.items()}


Form = Annotated[dict[str, str], Depends(read_form)]
