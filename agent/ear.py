"""Hears when somebody asks something of a running task, so that the task need not ask before every step."""

from __future__ import annotations

import threading

from agent.recorder import call
from store import wishes
from store.errors import PerdureError

RETRY_SECONDS = 1.0


class Ear(threading.Thread):
    """Listens on a connection of its own. While that is lost, tasks still look before model requests and effects."""

    def __init__(self, url: str) -> None:
        super().__init__(name="perdure-ear", daemon=True)
        self._url = url
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                for session in wishes.hear(self._url, self._ending.is_set):
                    call(session)
            except PerdureError:
                self._ending.wait(RETRY_SECONDS)

    def stop(self) -> None:
        self._ending.set()
        self.join(5)
