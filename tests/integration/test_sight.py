"""What the console shows as the next context is what the model is sent next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pydantic_ai.messages import ModelMessagesTypeAdapter

from agent.client import AgentClient
from agent.console.sight import NEXT, Sight, look
from store import sessions
from store.database import Database
from tests.workers import Place, Worker, eventually


async def see(url: str, session: str) -> Sight:
    async with Database(url) as database:
        row = await database.run(sessions.read_session(session))
        assert row is not None
        sight = await look(database, row, None)
        assert sight is not None
        return sight


def contents(messages: list[dict[str, Any]]) -> list[Any]:
    return [part.get("content") or part.get("args") for message in messages for part in message["parts"]]


def shown(sight: Sight) -> list[Any]:
    return contents(ModelMessagesTypeAdapter.dump_python(sight.messages, mode="json"))


def test_what_is_shown_is_what_the_model_is_sent(
    client: AgentClient, place: Place, hire: Callable[..., Worker]
) -> None:
    (place.folder / "open").touch()
    hire("tests.agents:planner")
    client.enqueue("planner", "plan. You must never build on Sundays.", session="s-1").result(timeout=30)
    sight = asyncio.run(see(place.url, "s-1"))
    assert {piece.title for piece in sight.pieces} >= {"goal", "plan, 2 of 4 done", "instructions of the agent"}
    later = client.enqueue("planner", "go on", session="s-1")
    later.result(timeout=30)
    sent = next(line["messages"] for line in place.world("sent") if line["task"] == later.id)
    assert [text if text != NEXT else "go on" for text in shown(sight)] == contents(sent)


def test_of_a_running_task_the_next_request_is_shown(
    client: AgentClient, place: Place, hire: Callable[..., Worker]
) -> None:
    hire("tests.agents:planner")
    task = client.enqueue("planner", "plan", session="s-1")
    eventually(lambda: place.world("ran"))
    waiting = asyncio.run(see(place.url, "s-1"))
    assert waiting.is_running
    (place.folder / "open").touch()
    task.result(timeout=30)
    sent = [line["messages"] for line in place.world("sent") if line["task"] == task.id][-1]
    assert [*shown(waiting), "open"] == contents(sent), "all but the result of the call that was running"
