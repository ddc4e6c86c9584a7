"""Tells systemd how the service fares, where systemd asked for it (sd_notify); elsewhere nothing happens."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable

SEND_SECONDS = 1.0
"""How long a word to systemd may take: the service never waits for its listener."""


def notify(word: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket, which has no file
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.settimeout(SEND_SECONDS)
        channel.sendto(word.encode(), address)


def pulse_seconds() -> float | None:
    """How often systemd wants to hear that all is well: twice per WatchdogSec, so that one may be late.

    WATCHDOG_PID is not looked at: in supervised mode it names the parent, and the child speaks.
    """
    given = os.environ.get("WATCHDOG_USEC", "")
    return int(given) / 2_000_000 if given.isdigit() and int(given) > 0 else None


class Pulse(threading.Thread):
    """Beats from a thread of its own while the worker is healthy, so that a busy event loop is not taken for dead."""

    def __init__(self, is_healthy: Callable[[], bool]) -> None:
        super().__init__(name="perdure-pulse", daemon=True)
        self._is_healthy = is_healthy
        self._ending = threading.Event()

    def run(self) -> None:
        pause = pulse_seconds()
        while pause is not None and not self._ending.wait(pause):
            if self._is_healthy():
                notify("WATCHDOG=1")

    def stop(self) -> None:
        self._ending.set()
