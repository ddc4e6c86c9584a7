"""Which process this is, and whether another one on this machine still is."""

from __future__ import annotations

import os
import signal
import socket
import uuid
from pathlib import Path

import psutil

from store.types import WorkerId


def host() -> str:
    return socket.gethostname()


def identity(pid: int | None = None) -> str | None:
    """Names a process for good: machine, boot, process namespace, pid and start. None when there is no such process."""
    try:
        process = psutil.Process(pid or os.getpid())
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{_place()}/{process.pid}/{_start(process)}"
    except psutil.NoSuchProcess:
        return None


def is_provably_gone(known: str, pid: int) -> bool:
    """True only for a process of this very place that is no more; a reused pid is not the same process."""
    return known.startswith(f"{_place()}/") and identity(pid) != known


def _start(process: psutil.Process) -> str:
    """When the process began, by a clock that nobody sets: ticks since boot where they are known."""
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return f"{process.create_time():.2f}"
    return stat.rsplit(")", 1)[1].split()[19]


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot, space = f"{psutil.boot_time():.0f}", "-"
    return f"{host()}/{boot}/{space}"


def new_worker_id() -> WorkerId:
    return WorkerId(f"{host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")


def ending(code: int) -> str | None:
    """How a process ended, in words; nothing when it ended as planned."""
    if code == 0:
        return None
    if code > 0:
        return f"exit status {code}"
    known = {int(number): number.name for number in signal.Signals}
    return f"killed by {known.get(-code, f'signal {-code}')}"
