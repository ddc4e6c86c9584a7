"""The files of a session's workspace."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Path, Response
from pydantic import BeforeValidator

from agent.api.answers import File
from agent.api.caller import Asking, Store, find_session
from agent.api.page import Cursor, Limit, Listing, Page
from agent.api.words import TEXT, SessionIn, with_slashes
from store import files
from store.errors import NotFound
from store.types import FileRow

router = APIRouter(prefix="/v1/sessions/{session_id}/files", tags=["files"])

FILES = Listing("files", str)

FilePath = Annotated[str, Path(min_length=1, max_length=4096, pattern=TEXT), BeforeValidator(with_slashes)]


@router.get("", response_model=Page[File])
async def list_files(
    session_id: SessionIn, caller: Asking, store: Store, limit: Limit = 100, cursor: Cursor = None
) -> dict[str, Any]:
    """List what is in a session's workspace, by path."""
    await find_session(store, caller, session_id)
    after = FILES.after(cursor) or ""
    rows = [row for row in await _manifest(store, session_id) if row.path > after]
    return FILES.page(rows, limit, lambda row: row.path)


@router.get(
    "/{path:path}",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "The content of the file."}},
)
async def read_file(session_id: SessionIn, path: FilePath, caller: Asking, store: Store) -> Response:
    """Read one file. It comes as bytes to keep, never as something for a browser to show."""
    await find_session(store, caller, session_id)
    found = next((row for row in await _manifest(store, session_id) if row.path == path), None)
    if found is None:
        raise NotFound(f"session {session_id!r} has no file {path!r}")
    data = await store.try_once(files.read_blob(found))
    content = await anyio.to_thread.run_sync(files.unpacked, data, found)
    return Response(
        content,
        media_type="application/octet-stream",
        headers={"Content-Disposition": f"attachment; filename*=UTF-8''{quote(path.rsplit('/')[-1], safe='')}"},
    )


async def _manifest(store: Store, session: str) -> list[FileRow]:
    rows = await store.try_once(files.read_manifest(session))
    return sorted(rows, key=lambda row: row.path)
