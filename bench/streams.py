"""1,000 idle event streams and 100 active ones on one service: memory per stream, and how late an active one hears.

    python -m bench.streams [--idle 1000] [--active 100]

Each active session's model says the time, five times a second; a follower compares it with its own clock when it hears.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCalls, FunctionModel

SECONDS = 15.0
WORDS_A_SECOND = 5


async def say_the_time(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    for _ in range(int(SECONDS * WORDS_A_SECOND)):
        yield f"{time.time():.4f} "
        await asyncio.sleep(1 / WORDS_A_SECOND)


clock = Agent(FunctionModel(stream_function=say_the_time, model_name="clock"), name="clock")


async def follow(http: httpx.AsyncClient, session: str, opened: asyncio.Semaphore, late: list[float] | None) -> None:
    async with http.stream("GET", f"/v1/sessions/{session}/events") as stream:
        opened.release()
        async for line in stream.aiter_lines():
            if late is None or not line.startswith("data: "):
                continue
            event = json.loads(line[6:])
            if event["kind"] == "token" and (words := event["data"]["delta"].split()):
                late.append(time.time() - float(words[-1]))
            elif event["kind"] == "task.finished":
                return


async def measure(address: str, pid: int, idle: int, active: int) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=None, limits=limits) as http:
        for number in range(idle):
            (
                await http.post("/v1/sessions", json={"agent": "clock", "session_id": f"idle-{number}"})
            ).raise_for_status()
        service = psutil.Process(pid)
        opened = asyncio.Semaphore(0)
        before = service.memory_info().rss
        followers = [asyncio.create_task(follow(http, f"idle-{number}", opened, None)) for number in range(idle)]
        for _ in followers:
            await opened.acquire()
        after = service.memory_info().rss
        service.cpu_percent()
        await asyncio.sleep(5)
        each = (after - before) / idle / 1024
        print(f"{idle} idle streams: {each:.0f} KB each, {service.cpu_percent():.0f} % of a core")

        for crowd in (1, active):
            late: list[float] = []
            names = [f"active-{crowd}-{number}" for number in range(crowd)]
            service.cpu_percent()
            listening: list[asyncio.Task[None]] = []
            for name in names:
                sent = await http.post(f"/v1/sessions/{name}/messages", json={"agent": "clock", "input": "go"})
                sent.raise_for_status()
                listening.append(asyncio.create_task(follow(http, name, opened, late)))
            await asyncio.gather(*listening)
            cuts = statistics.quantiles(late, n=20)
            print(
                f"{crowd} active beside them: a word is heard after {statistics.median(late) * 1000:.0f} ms (median),"
                f" {cuts[18] * 1000:.0f} ms (95 %); {len(late)} pieces, {service.cpu_percent():.0f} % of a core"
            )
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)


async def run(folder: str, idle: int, active: int) -> None:
    environment = {
        **os.environ,
        "PERDURE_HOME": folder,
        "PERDURE_PORT": "0",
        "PERDURE_AGENTS": "bench.streams:clock",
    }
    service = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agent", "start", env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert service.stdout is not None
        ready = (await service.stdout.readline()).decode().strip()
        await measure(f"http://{ready.rsplit('http://', 1)[1]}", service.pid, idle, active)
    finally:
        service.terminate()
        await service.wait()


if __name__ == "__main__":
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--idle", type=int, default=1000)
    given.add_argument("--active", type=int, default=100)
    wanted = given.parse_args()
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as home:
        Path(home).chmod(0o755)  # Postgres runs as a user of its own
        asyncio.run(run(home, wanted.idle, wanted.active))
