"""Directories on this machine whose sessions are gone, wherever they were deleted.

A directory is made by a task, and so after its session; what is listed first and looked up then has no session any
more. Should one be made again under the same name meanwhile, its files are restored like any that somebody removed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from agent.desk import in_thread
from agent.folder import DIRECTORY, INCOMING, INDEX, remove
from store import sessions
from store.database import Database

NAMED = re.compile(r"[a-z0-9-]{1,40}-([0-9a-f]{24})")
"""As `agent.folder.folder_name` names directories; what is called otherwise is none of ours."""
MOST_AT_ONCE = 1000


@dataclass(frozen=True)
class Leftovers:
    database: Database
    base: Path

    async def sweep(self) -> int:
        """How many directories were removed."""
        named = await in_thread(self._named)
        removed = 0
        for start in range(0, len(named), MOST_AT_ONCE):
            some = dict(list(named.items())[start : start + MOST_AT_ONCE])
            living = await self.database.try_once(sessions.find_digests(list(some)))
            for digest in some.keys() - living:
                await in_thread(self._remove, some[digest])
                removed += 1
        return removed

    def _named(self) -> dict[str, str]:
        """Directories of sessions by the digest in their names."""
        try:
            found = os.listdir(self.base)
        except FileNotFoundError:
            return {}
        return {named[1]: name for name in found if (named := NAMED.fullmatch(name))}

    def _remove(self, name: str) -> None:
        base = os.open(self.base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remove(base, name)
            for beside in (INDEX, INCOMING):
                self._remove_beside(base, beside, name)
        finally:
            os.close(base)

    def _remove_beside(self, base: int, beside: str, name: str) -> None:
        try:
            folder = os.open(beside, DIRECTORY, dir_fd=base)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            for entry in os.listdir(folder):
                if entry == name or entry.startswith(f"{name}."):
                    remove(folder, entry)
        finally:
            os.close(folder)
