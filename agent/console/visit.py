"""The console's door for people: a key once, then a cookie."""

from __future__ import annotations

import json
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from agent.api.caller import COOKIE, keyring_of
from agent.console.page import Page, ask_for_key
from agent.keyring import SIGNED_IN, Keyring
from store.errors import InvalidInput

router = APIRouter(prefix="/console", include_in_schema=False, route_class=Page)

LONGEST_KEY = 1000

Keys = Annotated[Keyring, Depends(keyring_of)]


@router.get("/sign-in", response_class=HTMLResponse)
async def show_sign_in(request: Request) -> HTMLResponse:
    return ask_for_key(request, status=200)


@router.post("/sign-in")
async def sign_in(request: Request, keyring: Keys) -> Response:
    """A form of the console's, or JSON from a program; the key goes no further than this."""
    key = await _given_key(request)
    if not await keyring.needs_key():
        return RedirectResponse("/", 303)
    token = await keyring.sign_in(key)
    if token is None:
        return ask_for_key(request, status=401, told="This key is not known, or was revoked.")
    response = RedirectResponse("/", 303)
    response.set_cookie(
        COOKIE, token, max_age=int(SIGNED_IN), httponly=True, samesite="lax", secure=request.url.scheme == "https"
    )
    return response


@router.post("/sign-out")
async def sign_out(request: Request, keyring: Keys) -> Response:
    if token := request.cookies.get(COOKIE):
        await keyring.sign_out(token)
    response = RedirectResponse("/console/sign-in", 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="lax", secure=request.url.scheme == "https")
    return response


async def _given_key(request: Request) -> str:
    body = await request.body()
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    try:
        if kind == "application/json":
            given = json.loads(body)
            key = given.get("key") if isinstance(given, dict) else None
        else:
            key = parse_qs(body.decode("utf-8"), max_num_fields=10).get("key", [None])[0]
    except (ValueError, RecursionError):
        key = None
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise InvalidInput("give the key as the field 'key' of a form or of a JSON body")
    return key.strip()
