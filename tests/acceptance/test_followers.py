"""Whoever follows a session misses nothing and hears nothing twice, whichever process dies meanwhile."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from typing import Any

import httpx

from agent.client import AgentClient
from tests.workers import Place, Worker, eventually

CHATTER = "tests.talkers:chatter"
CONNECTIONS = 200
TURNS = 12
WHOLE = "".join(f"word{number} " for number in range(40))


class Services:
    """Two of them. The one at work is killed again and again, and started anew."""

    def __init__(self, place: Place, client: AgentClient) -> None:
        self._place = place
        self._client = client
        self._services = [self._start() for _ in range(2)]
        self._ending = threading.Event()
        self._killer = threading.Thread(target=self._kill)
        self.deaths = 0

    def _start(self) -> Worker:
        return Worker.start(self._place, [CHATTER], command="start", isolate_after=99, crash_limit=99)

    def __enter__(self) -> Services:
        self._killer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._killer.join()
        for service in self._services:
            service.dismiss()

    def rest(self) -> None:
        self._ending.set()
        self._killer.join()

    def any_address(self, chance: random.Random) -> str:
        return f"http://{chance.choice(self._services).address}"

    def _kill(self) -> None:
        while not self._ending.wait(1.0):
            doomed = self._at_work()
            self._services[doomed].kill()
            self._services[doomed].dismiss()
            self.deaths += 1
            self._services[doomed] = self._start()

    def _at_work(self) -> int:
        """The one that gives an answer, if one does."""
        running = {task.worker_id for task in self._client.tasks(status="running")}
        pids = {worker.pid for worker in self._client.workers() if worker.worker_id in running}
        return next((index for index, service in enumerate(self._services) if service.pid in pids), 0)


def listen(http: httpx.Client, address: str, last: str | None, most: int) -> list[dict[str, Any]]:
    """At most so many events after the last one, or fewer when the line is cut or nothing more comes."""
    heard: list[dict[str, Any]] = []
    headers = {"Last-Event-ID": last} if last else {}
    fields: dict[str, str] = {}
    with (
        contextlib.suppress(httpx.TransportError),
        http.stream("GET", f"{address}/v1/sessions/s-1/events", headers=headers) as stream,
    ):
        for line in stream.iter_lines():
            name, _, content = line.partition(": ")
            if name in ("id", "event", "data"):
                fields[name] = content
            elif not line and "data" in fields:
                heard.append({**json.loads(fields["data"]), "id": fields["id"]})
                fields = {}
                if len(heard) >= most:
                    break
    return heard


def test_a_client_that_reconnects_two_hundred_times_hears_everything_once_and_in_order(
    client: AgentClient, place: Place
) -> None:
    chance = random.Random(7)
    heard: list[dict[str, Any]] = []
    connections = 0
    with Services(place, client) as services, httpx.Client(timeout=httpx.Timeout(5, read=0.5)) as http:
        tasks = [client.enqueue("chatter", f"turn {turn}", session="s-1") for turn in range(TURNS)]
        while connections < CONNECTIONS or tasks[-1].status() not in ("done", "failed", "dead"):
            connections += 1
            last = heard[-1]["id"] if heard else None
            heard += listen(http, services.any_address(chance), last, chance.randint(1, 12))
            if connections >= CONNECTIONS:
                services.rest()
        assert services.deaths >= 5
        finished = eventually(lambda: [task.status() for task in tasks] == ["done"] * TURNS)
        assert finished
        recorded = client.session("s-1").events()
        while heard[-1].get("seq") != recorded[-1].seq:
            heard += listen(http, services.any_address(chance), heard[-1]["id"], 1000)

    told = [(event["seq"], event["kind"]) for event in heard if "seq" in event]
    assert told == [(event.seq, event.kind) for event in recorded], "each event once, in order"
    shown, answers = "", list[str]()
    for event in heard:
        match event["kind"]:
            case "token":
                shown += event["data"]["delta"]
                assert WHOLE.startswith(shown), "the pieces of an answer add up, without gap or repeat"
            case "reset":
                shown = ""
            case "model.responded":
                answers.append("".join(part["content"] for part in event["data"]["parts"]))
                shown = ""
            case _:
                pass
    assert answers == [WHOLE] * TURNS
    kinds = [event["kind"] for event in heard]
    assert "token" in kinds and "reset" in kinds, "answers were cut while they were followed"
    print(f"{connections} connections, {services.deaths} processes killed, {len(heard)} events")
