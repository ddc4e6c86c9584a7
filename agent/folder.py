"""The directory of one session: a copy of what its manifest says, made so that nothing leads out of it.

Every name on the way is opened by itself, below the one before and never through a link, so that whoever plants a link
between two calls gains nothing. Postgres holds the truth: what does not look as it should is told from what does, and
replaced.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from agent.paths import parts_of, prefixes
from store.errors import Conflict
from store.types import FileRow

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

INCOMING = ".incoming"
INDEX = ".index"
"""Beside the directories of sessions, whose names never begin with a dot."""

Mark = list[str | int]
"""A content, and by what the file that has it is known again without reading it."""


class Foreign(Conflict):
    """Something is in the directory that Perdure did not put there."""


def folder_name(session: str) -> str:
    """A name that is harmless whatever the session is called, and no other session's."""
    readable = re.sub(r"[^a-z0-9]+", "-", session.lower()).strip("-")[:40]
    return f"{readable or 'session'}-{hashlib.sha256(session.encode()).hexdigest()[:24]}"


class Folder:
    """Knows by `files` what should be there. Its methods block, and are not for two threads at a time."""

    def __init__(self, base: Path, session: str) -> None:
        self.base = base
        self.name = folder_name(session)
        self.files: dict[str, FileRow] = {}
        self._marks: dict[str, Mark] = {}

    @property
    def path(self) -> Path:
        return self.base / self.name

    def survey(self, *, is_trusting: bool = True) -> list[FileRow]:
        """Remove what should not be there; the files that are missing. Unchanged files are not read, if trusted."""
        for name in (self.name, INCOMING, INDEX):
            self._establish(name)
        self._drop_incoming()
        known = self._read_index() if is_trusting else {}
        folders = {prefix for path in self.files for prefix in prefixes(path)[:-1]}
        self._marks = {}
        with self._opened(self.name) as root:
            self._visit(root, "", folders, known)
        return [file for path, file in self.files.items() if path not in self._marks]

    def put(self, path: str, content: bytes) -> None:
        """The file is there whole, or as it was. What stands at its name is replaced, not followed."""
        *folders, name = parts_of(path)
        temporary = f"{self.name}.{uuid.uuid4().hex}"
        with self._opened(INCOMING) as incoming, self._opened(self.name, *folders, is_made=True) as parent:
            descriptor = os.open(temporary, CREATE, 0o600, dir_fd=incoming)
            try:
                fill(descriptor, content)
                os.fsync(descriptor)
                os.rename(temporary, name, src_dir_fd=incoming, dst_dir_fd=parent)
                self._marks[path] = mark_of(hashlib.sha256(content).digest(), os.fstat(descriptor))
            except IsADirectoryError:
                raise Foreign(f"{path} is a folder that does not belong here; try again.") from None
            finally:
                os.close(descriptor)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=incoming)

    def drop(self, path: str) -> None:
        """The file is gone, and every folder on the way to it that held nothing else."""
        *folders, name = parts_of(path)
        self._marks.pop(path, None)
        with self._opened(self.name, *folders) as parent:
            remove(parent, name)
        while folders:
            *folders, name = folders
            with self._opened(self.name, *folders) as parent:
                try:
                    os.rmdir(name, dir_fd=parent)
                except OSError as error:
                    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                        return
                    raise Foreign(f"{path} lies in a folder that somebody changed; try again.") from None

    def read(self, path: str) -> bytes:
        """The content of a file of the manifest, and nothing else."""
        *folders, name = parts_of(path)
        file = self.files[path]
        with self._opened(self.name, *folders) as parent:
            content = read_plain(parent, name, file.size)
        if hashlib.sha256(content).digest() != file.sha256:
            raise Foreign(f"{path} was changed by somebody else; try again.")
        return content

    def keep_index(self) -> None:
        """Remember the files that were seen. Losing the index costs reading them again, and nothing else."""
        self._establish(INDEX)
        temporary = f"{self.name}.{uuid.uuid4().hex}"
        with self._opened(INDEX) as index:
            descriptor = os.open(temporary, CREATE, 0o600, dir_fd=index)
            with os.fdopen(descriptor, "w") as file:
                json.dump(self._marks, file)
            os.rename(temporary, self.name, src_dir_fd=index, dst_dir_fd=index)

    def _read_index(self) -> Mapping[str, Mark]:
        try:
            with self._opened(INDEX) as index:
                size = os.stat(self.name, dir_fd=index, follow_symlinks=False).st_size
                read = json.loads(read_plain(index, self.name, size))
        except (OSError, ValueError, Conflict):
            return {}
        return read if isinstance(read, dict) else {}

    def _visit(self, folder: int, prefix: str, folders: set[str], known: Mapping[str, Mark]) -> None:
        with os.scandir(folder) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, is_folder in names:
            path = prefix + name
            if is_folder and path in folders:
                below = step_into(folder, name)
                try:
                    self._visit(below, f"{path}/", folders, known)
                finally:
                    os.close(below)
            elif not is_folder and path in self.files and (mark := self._mark(folder, name, path, known.get(path))):
                self._marks[path] = mark
            else:
                remove(folder, name)

    def _mark(self, folder: int, name: str, path: str, known: Mark | None) -> Mark | None:
        """What the file is known by from now on, if it is as it should be."""
        file = self.files[path]
        try:
            seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not is_plain(seen) or seen.st_size != file.size:
                return None
            mark = mark_of(file.sha256, seen)
            if mark == known:
                return mark
            content = read_plain(folder, name, file.size)
        except (OSError, Foreign):
            return None
        return mark if hashlib.sha256(content).digest() == file.sha256 else None

    def _establish(self, name: str) -> None:
        self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._opened() as base:
            try:
                os.mkdir(name, 0o700, dir_fd=base)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(name, dir_fd=base, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=base)
                    os.mkdir(name, 0o700, dir_fd=base)

    def _drop_incoming(self) -> None:
        with self._opened(INCOMING) as incoming:
            for name in os.listdir(incoming):
                if name.startswith(f"{self.name}."):
                    remove(incoming, name)

    @contextlib.contextmanager
    def _opened(self, *names: str, is_made: bool = False) -> Iterator[int]:
        """A directory below the base, reached name by name."""
        try:
            here = os.open(self.base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Foreign("The directory was removed by somebody else; try again.") from None
        try:
            for name in names:
                if is_made:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=here)
                below = step_into(here, name)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)


def step_into(folder: int, name: str) -> int:
    try:
        return os.open(name, DIRECTORY, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT):
            raise Foreign(f"{name} is no folder but a link or something else; try again.") from None
        raise


def read_plain(folder: int, name: str, size: int) -> bytes:
    """The content of a regular file that has one name; a byte more than the size, if there is more."""
    try:
        # Opening a device can do things, so it is looked at first.
        if not is_plain(os.stat(name, dir_fd=folder, follow_symlinks=False)):
            raise Foreign(f"{name} is a link, a device or something else that is no plain file; try again.")
        descriptor = os.open(name, READ, dir_fd=folder)
    except FileNotFoundError:
        raise Foreign(f"{name} was removed by somebody else; try again.") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise Foreign(f"{name} is a link; try again.") from None
        raise
    with os.fdopen(descriptor, "rb") as file:
        if not is_plain(os.fstat(descriptor)):
            raise Foreign(f"{name} is a link, a device or something else that is no plain file; try again.")
        return file.read(size + 1)


def is_plain(seen: os.stat_result) -> bool:
    return stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1


def mark_of(sha256: bytes, seen: os.stat_result) -> Mark:
    return [sha256.hex(), seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino]


def fill(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def remove(folder: int, name: str) -> None:
    """Whatever it is; links are removed, not followed."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
