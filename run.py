#!/usr/bin/env python3
"""Set up Perdure beside this file and run it. Needs Python 3.11 or newer, and nothing else.

python3 run.py start            the service, through `dbos start`
python3 run.py test [...]       the whole test suite; arguments go to pytest
python3 run.py <anything else>  the same as: perdure <anything else>
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
RUNTIME_LOCK = ROOT / "requirements.lock"
TEST_LOCK = ROOT / "requirements-test.lock"


def main() -> int:
    if sys.version_info < (3, 11):
        return complain(f"Perdure needs Python 3.11 or newer; this is {sys.version.split()[0]}.")
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    testing = arguments[0] == "test"
    problem = set_up([RUNTIME_LOCK, TEST_LOCK] if testing else [RUNTIME_LOCK])
    if problem:
        return complain(problem)
    environment = {
        **os.environ,
        "VIRTUAL_ENV": str(VENV),
        "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    if testing:
        return subprocess.run([PYTHON, "-m", "pytest", *arguments[1:]], cwd=ROOT, env=environment).returncode
    if arguments == ["start"]:
        return start(environment)
    os.execve(PYTHON, [str(PYTHON), "-m", "agent", *arguments], {**environment, "PYTHONPATH": str(ROOT)})


def set_up(locks: list[Path]) -> str | None:
    """Make the virtual environment hold exactly these locks; what went wrong, if anything did."""
    stamps = {lock: VENV / f".{lock.name}" for lock in locks}
    wanted = {lock: digest(lock) for lock in locks}
    missing = [lock for lock in locks if read(stamps[lock]) != wanted[lock]]
    if not missing:
        return None
    try:
        lock_file = open(ROOT / ".setup.lock", "w")
    except OSError as error:
        return f"Perdure is set up beside run.py, and {ROOT} cannot be written: {error.strerror}."
    fcntl.flock(lock_file, fcntl.LOCK_EX)
    print("Setting up Perdure in .venv; this happens once.", file=sys.stderr, flush=True)
    if not PYTHON.exists():
        made = run([sys.executable, "-m", "venv", VENV])
        if made:
            shutil.rmtree(VENV, ignore_errors=True)
            if "ensurepip" in made:
                version = f"{sys.version_info.major}.{sys.version_info.minor}"
                return f"Python's venv module is incomplete here. On Debian or Ubuntu: apt install python{version}-venv"
            return f"The virtual environment could not be made: {made}"
    for lock in missing:
        failed = install("-r", lock)
        if failed:
            return f"Installing {lock.name} failed: {failed}"
    failed = install("--no-deps", "--no-build-isolation", "-e", ROOT)
    if failed:
        return f"Installing Perdure itself failed: {failed}"
    for lock in missing:
        stamps[lock].write_text(wanted[lock])
    return None


def install(*what: object) -> str | None:
    """With uv where it is and works, for speed; with pip otherwise."""
    uv = shutil.which("uv")
    if uv and run([uv, "pip", "install", "--quiet", "--python", PYTHON, *what]) is None:
        return None
    return run([PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", *what])


def start(environment: dict[str, str]) -> int:
    """Run `dbos start`, and stay until the service behind it has stopped: `dbos start` itself does not wait."""
    descriptor, name = tempfile.mkstemp(prefix="perdure-run-")
    try:
        service = subprocess.Popen(
            [VENV / "bin" / "dbos", "start"], cwd=ROOT, env={**environment, "PERDURE_RUN_FILE": name}
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: service.poll() is None and service.send_signal(received))
        service.wait()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return 0 if os.read(descriptor, 100) == b"stopped as planned" else 1
    finally:
        os.close(descriptor)
        os.unlink(name)


def digest(lock: Path) -> str:
    parts = [lock.read_bytes(), (ROOT / "pyproject.toml").read_bytes(), sys.version.encode(), str(ROOT).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def run(command: list) -> str | None:
    """Run quietly; the last lines it printed, if it failed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        },
    )
    if done.returncode == 0:
        return None
    said = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()
    return " ".join(said[-3:]) if "ensurepip" not in done.stdout + done.stderr else "ensurepip is missing"


def complain(problem: str) -> int:
    print(f"run.py: {problem}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
