"""One execution at work on the files of its session.

Postgres holds the truth and the directory is a copy of it. A change is first one fenced transaction, then a file that
appears whole. Before an execution uses the directory for the first time it is made to be exactly what the manifest
says, so that a crash in between, another worker or another machine make no difference.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread
from pydantic_ai import ModelRetry

from agent.excerpt import as_bytes, as_text, replaced
from agent.folder import Folder, Foreign
from agent.paths import check_room_for, folded, parts_of
from agent.recorder import Execution, current, fenced
from agent.tools import idempotency_key
from agent.watch import beat
from store import files
from store.database import Database
from store.errors import InvalidInput, NotFound, Refused, TooLarge, Unusable
from store.types import FileRow

T = TypeVar("T")


@dataclass(frozen=True)
class Space:
    """Where the directories of sessions are on this machine, and how much they may hold."""

    database: Database
    base: Path
    file_bytes: int
    session_bytes: int


_space: ContextVar[Space | None] = ContextVar("perdure_space", default=None)


@contextmanager
def lent(space: Space | None) -> Iterator[None]:
    """The workspace tools that run inside use this one."""
    token = _space.set(space)
    try:
        yield
    finally:
        _space.reset(token)


@dataclass
class Desk:
    """One execution at work on the files of its session."""

    space: Space
    execution: Execution
    folder: Folder

    async def restore(self, *, is_trusting: bool = True) -> None:
        """The directory is exactly what the manifest says."""
        database, folder = self.space.database, self.folder
        rows = await database.run(files.read_manifest(self.execution.task.session_id))
        check_paths(rows)
        folder.files = {row.path: row for row in rows}
        for file in await in_thread(partial(folder.survey, is_trusting=is_trusting)):
            data = await database.run(files.read_blob(file))
            await in_thread(folder.put, file.path, await in_thread(files.unpacked, data, file))
            beat()
        await in_thread(folder.keep_index)

    async def read(self, path: str) -> bytes:
        parts_of(path)
        self._check_known(path)
        return await self._undisturbed(lambda: self.folder.read(path))

    async def write(self, path: str, text: str) -> int:
        """Safe to repeat: the same content again is no change, neither in Postgres nor in the directory."""
        content = as_bytes(text)
        await self._save(path, content)
        return len(content)

    async def edit(self, path: str, old: str, new: str) -> None:
        """Safe to repeat: Postgres knows a change that this very call has made by its key."""
        if await self._has_changed(path):
            return
        text = as_text(await self.read(path))
        if text is None:
            raise InvalidInput(f"{path} is binary and cannot be edited; write_file replaces it.")
        await self._save(path, as_bytes(replaced(path, text, old, new)))

    async def delete(self, path: str) -> None:
        """Safe to repeat: as for an edit, so that a second run does not miss what the first one removed."""
        if await self._has_changed(path):
            return
        self._check_known(path)
        task = self.execution.task.task_id
        removing = files.remove_file(task, self.execution.owner, path, key=idempotency_key())
        await fenced(self.space.database, removing, task)
        del self.folder.files[path]
        try:
            await in_thread(self.folder.drop, path)
        except Foreign:
            await self.restore(is_trusting=False)

    async def _has_changed(self, path: str) -> bool:
        """Whether this very call has changed the file already, before a crash."""
        parts_of(path)
        finding = files.find_change(self.execution.task.session_id, path, key=idempotency_key())
        return await self.space.database.run(finding)

    def _check_known(self, path: str) -> None:
        if path not in self.folder.files:
            raise NotFound(f"There is no file {path!a}{self._hint(path)}; list_files shows what there is.")

    async def _save(self, path: str, content: bytes) -> None:
        parts_of(path)
        known = self.folder.files
        if path not in known:
            check_room_for(path, known)
        self._check_size(path, len(content))
        file = files.describe(path, content)
        task = self.execution.task.task_id
        data = await in_thread(files.packed, content)
        saving = files.save_file(task, self.execution.owner, file, data, key=idempotency_key())
        await fenced(self.space.database, saving, task)
        known[path] = file
        await self._undisturbed(lambda: self.folder.put(path, content))

    def _check_size(self, path: str, size: int) -> None:
        if size > self.space.file_bytes:
            raise TooLarge(
                f"{path} would have {size} bytes, and a file may have {self.space.file_bytes}; write several files."
            )
        others = sum(file.size for file in self.folder.files.values() if file.path != path)
        if others + size > self.space.session_bytes:
            raise TooLarge(
                f"{path} would have {size} bytes, and the workspace has room for"
                f" {self.space.session_bytes - others} of {self.space.session_bytes};"
                " make this or other files smaller, or delete some."
            )

    def _hint(self, path: str) -> str:
        alike = [known for known in self.folder.files if folded(known) == folded(path)]
        return f", but {alike[0]!a}" if alike else ""

    async def _undisturbed(self, act: Callable[[], T]) -> T:
        """What somebody put in the way is cleared away, once; after that it is said."""
        try:
            return await in_thread(act)
        except Foreign:
            await self.restore(is_trusting=False)
            return await in_thread(act)


def check_paths(rows: Sequence[FileRow]) -> None:
    """Nothing is restored when the manifest names what can be no file, which only SQL can have put there."""
    for row in rows:
        try:
            parts_of(row.path)
        except InvalidInput as problem:
            raise Unusable(f"The files of this session cannot be restored. {problem}") from None


@asynccontextmanager
async def at_the_desk() -> AsyncIterator[Desk]:
    """The running task's files, one call at a time; what is refused is told to the model."""
    space, execution = _space.get(), current.get()
    if space is None or execution is None:
        raise RuntimeError("the workspace is known only inside a task that Perdure runs")
    async with execution.writing:
        try:
            desk = Desk(space, execution, execution.folder or Folder(space.base, execution.task.session_id))
            if execution.folder is None:
                await desk.restore()
                execution.folder = desk.folder
            yield desk
        except Refused as refusal:
            raise ModelRetry(str(refusal)) from None


async def in_thread(act: Callable[..., T], *given: Any) -> T:
    return await anyio.to_thread.run_sync(act, *given)
