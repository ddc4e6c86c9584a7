"""The one way an endpoint learns who asks."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from agent.api.door import SAFE
from agent.keyring import ANYBODY, Caller, Keyring
from store import sessions, tasks
from store.database import Database
from store.errors import NotAllowed, NotFound
from store.types import SessionRow, TaskRow

COOKIE = "perdure_console"

bearer = HTTPBearer(
    scheme_name="key",
    auto_error=False,
    description="`Authorization: Bearer KEY`, with a key of `perdure keys make NAME` or of `PERDURE_API_KEYS`."
    " Not needed on loopback while there are no keys.",
)


def keyring_of(request: Request) -> Keyring:
    return cast(Keyring, request.app.state.keyring)


def database_of(request: Request) -> Database:
    return cast(Database, request.app.state.database)


async def recognise(request: Request, credentials: HTTPAuthorizationCredentials | None) -> Caller:
    """Whoever asks, by key or by the console's cookie."""
    keyring = keyring_of(request)
    caller: Caller | None = None
    if not await keyring.needs_key():
        caller = ANYBODY
    elif credentials is not None:
        caller = await keyring.find(credentials.credentials)
    elif "authorization" not in request.headers and (token := request.cookies.get(COOKIE)):
        caller = await keyring.find_signed_in(token)
    if caller is None:
        raise HTTPException(401, "this needs an API key: Authorization: Bearer KEY", {"WWW-Authenticate": "Bearer"})
    return caller


async def identify(
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
) -> Caller:
    """As `recognise`; and what changes something takes more than a read-only key."""
    caller = await recognise(request, credentials)
    if caller.is_read_only and request.method not in SAFE:
        raise NotAllowed("this key may only read")
    return caller


Asking = Annotated[Caller, Depends(identify)]
Store = Annotated[Database, Depends(database_of)]


async def find_session(database: Database, caller: Caller, session: str) -> SessionRow:
    """The session, if there is one that the caller may see."""
    row = await database.try_once(sessions.read_session(session))
    if row is None or not caller.sees(row.user_id):
        raise NotFound(f"there is no session {session!r}")
    return row


async def find_task(database: Database, caller: Caller, task: str) -> TaskRow:
    row = await database.try_once(tasks.read_task(task))
    if row is None or not caller.sees(row.user_id):
        raise NotFound(f"there is no task {task!r}")
    return row


async def check_session(database: Database, caller: Caller, session: str) -> None:
    """As `find_session`, for acts that themselves refuse what is not there: no round trip for those who see all."""
    if caller.user is not None:
        await find_session(database, caller, session)


async def check_task(database: Database, caller: Caller, task: str) -> None:
    if caller.user is not None:
        await find_task(database, caller, task)


def user_for(caller: Caller, wanted: str | None) -> str | None:
    """On whose behalf the caller acts; those with a user of their own on nobody else's."""
    if caller.user is not None and wanted not in (None, caller.user):
        raise NotAllowed("this key acts for one user only, and not for this one")
    return wanted if caller.user is None else caller.user
