"""The files of a session: contents stored once, compressed, and a manifest that says which path has which."""

from __future__ import annotations

import base64
import hashlib

import zstandard

from store.errors import InvalidInput, Unusable
from store.statement import Rows, Statement, all_of, query, value
from store.types import FileRow, Json, OwnerToken, SessionId, TaskId

UNKNOWN_SIZE = -1


def describe(path: str, content: bytes) -> FileRow:
    return FileRow(path=path, sha256=hashlib.sha256(content).digest(), size=len(content))


def packed(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def unpacked(data: bytes, file: FileRow) -> bytes:
    """The content, or a refusal to pass off anything else for it."""
    try:
        # The frame says how large it is, and a false one must not be believed.
        is_believable = not file.size or zstandard.frame_content_size(data) in (file.size, UNKNOWN_SIZE)
        unpack = zstandard.ZstdDecompressor().decompress
        content = None if not is_believable else unpack(data, max_output_size=file.size) if file.size else b""
    except zstandard.ZstdError:
        content = None
    if content is None or hashlib.sha256(content).digest() != file.sha256:
        raise Unusable(
            f"The stored content of {file.path} is damaged, it does not have the hash it is stored under: restore"
            " agent.blobs from a backup, or import the session again with perdure import, which checks its files."
        )
    return content


def exported(file: FileRow, data: bytes) -> Json:
    """A file as it travels: what it is, and its content as it is stored."""
    packed_text = base64.b64encode(data).decode()
    return {"path": file.path, "sha256": file.sha256.hex(), "size": file.size, "data": packed_text}


def imported(entry: Json) -> FileRow:
    """The file of an entry, once its content is seen to be what it says: contents are shared by their hash."""
    try:
        file = FileRow(path=entry["path"], sha256=bytes.fromhex(entry["sha256"]), size=entry["size"])
        unpacked(base64.b64decode(entry["data"], validate=True), file)
    except (KeyError, TypeError, ValueError, Unusable) as error:
        raise InvalidInput(f"a file of the document is not what it says: {error}") from error
    return file


def save_file(task: TaskId, owner: OwnerToken, file: FileRow, data: bytes, *, key: str) -> Statement[bool]:
    return Statement(
        query("save_file"),
        {
            "task": task, "owner": owner, "path": file.path, "sha256": file.sha256, "size": file.size,
            "data": data, "key": key,
        },
        value,
    )  # fmt: skip


def remove_file(task: TaskId, owner: OwnerToken, path: str, *, key: str) -> Statement[bool]:
    gone = {"sha256": None, "size": None, "data": None}
    return Statement(query("save_file"), {"task": task, "owner": owner, "path": path, "key": key, **gone}, value)


def read_manifest(session: SessionId | str) -> Statement[list[FileRow]]:
    return Statement(query("read_manifest"), {"session": session}, all_of(FileRow))


def read_blob(file: FileRow) -> Statement[bytes]:
    def read(rows: Rows) -> bytes:
        if not rows:
            raise Unusable(f"The stored content of {file.path} is gone: restore agent.blobs from a backup.")
        return bytes(value(rows))

    return Statement(query("read_blob"), {"sha256": file.sha256}, read)


def find_change(session: SessionId | str, path: str, *, key: str) -> Statement[bool]:
    return Statement(query("find_change"), {"session": session, "path": path, "key": key}, value)
