"""The HTTP API for tests: the real application behind a real server on loopback, without a worker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from agent.console.site import build_site
from agent.keyring import Keyring
from store import workers
from store.bell import Bell
from store.database import Database
from store.types import AgentCard

CARDS = [
    AgentCard(name="echo", description="Says it again.", model=None, tools=()),
    AgentCard(name="gate", description=None, model="test", tools=("open_gate",)),
]


@dataclass(frozen=True)
class Served:
    address: str
    port: int

    def client(self, key: str | None = None, **options: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.address, headers=headers, timeout=30, **options)


class Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def serving(
    url: str, *, keys: tuple[str, ...] = (), is_public: bool = False, is_ready: bool = True, **options: Any
) -> Iterator[Served]:
    started = threading.Event()
    port: list[int] = []
    ends: list[Any] = []

    async def serve() -> None:
        async with Database(url) as database, Bell(url) as bell:
            await database.run(workers.register_agents(CARDS))
            api = build_site(database, lambda: is_ready, Keyring(database, keys, is_public=is_public), bell, **options)
            server = Quiet(
                uvicorn.Config(api, port=0, log_level="critical", access_log=False, lifespan="off", server_header=False)
            )
            serving = asyncio.create_task(server.serve())
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            port.append(server.servers[0].sockets[0].getsockname()[1])
            ends.append((asyncio.get_running_loop(), server))
            started.set()
            await serving

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(30), "the server never started"
        yield Served(f"http://127.0.0.1:{port[0]}", port[0])
    finally:
        for loop, server in ends:
            server.force_exit = True
            loop.call_soon_threadsafe(setattr, server, "should_exit", True)
        thread.join(30)
