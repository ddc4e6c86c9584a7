"""Who is let in at all: by which name we are called, and from which page.

A browser will carry a web page's wishes to any address, also to one on this machine. Two things give such a page
away: a host name that it made to point here (DNS rebinding), and the origin that the browser says it comes from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.api import problem

LOOPBACK = ("localhost", "127.0.0.1", "::1")
SAFE = ("GET", "HEAD", "OPTIONS")
PROBES = ("/livez", "/readyz")
"""What probes ask under any name, as by the address of a container; it tells nobody anything."""

SLASH = "\x1f"
"""Stands for an escaped slash in a path, so that an id may hold one: no id holds control characters."""


class Door:
    """`hosts` are names beside the loopback ones. Without any, only keyless services look at the name: where a key
    is asked for, a page that reaches us under another name has neither key nor cookie."""

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str], needs_key: Callable[[], Awaitable[bool]]) -> None:
        self.app = app
        self.hosts = tuple(host.lower() for host in hosts)
        self.needs_key = needs_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_ours(host) and (self.hosts or not await self.needs_key()):
            detail = f"this service is not called {host[:200]!a}; PERDURE_ALLOWED_HOSTS names what it is called"
            await problem.answer(scope, 400, detail)(scope, receive, send)
        elif scope["method"] not in SAFE and "authorization" not in headers and _is_foreign(headers):
            # A page cannot add a key to what it sends here unless we agree first, and we never do.
            await problem.answer(scope, 403, "another site's page may not do this")(scope, receive, send)
        else:
            _keep_slashes(scope)
            await self.app(scope, receive, send)

    def _is_ours(self, given: str) -> bool:
        name = host_name(given)
        return (
            name in LOOPBACK
            or name in self.hosts
            or any(host.startswith("*.") and name.endswith(host[1:]) for host in self.hosts)
        )


def host_name(given: str) -> str:
    """The name of a Host header, without port and brackets; nothing if it is none."""
    try:
        return (urlsplit(f"//{given}").hostname or "") if not set(given) & set("/@?#\\") else ""
    except ValueError:
        return ""


def _is_foreign(headers: Headers) -> bool:
    """Whether a browser says that this comes from another origin. Programs say nothing of the kind."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()


def _keep_slashes(scope: Scope) -> None:
    raw: bytes = scope.get("raw_path", b"")
    if b"%2f" in raw.lower() and b"%1f" not in raw.lower():
        kept = raw.split(b"?")[0].replace(b"%2f", b"%1f").replace(b"%2F", b"%1f")
        scope["path"] = unquote(kept.decode("ascii", "replace"))
