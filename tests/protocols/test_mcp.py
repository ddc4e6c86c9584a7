"""MCP with the real `mcp` client: tasks started, watched, approved, and found again after a kill -9."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from agent.client import AgentClient
from tests.protocols.service import TEXT, let, service
from tests.serving import serving
from tests.workers import Place


async def call(client: Client, tool: str, **given: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, given)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return dict(result.structured_content)


async def refusal(client: Client, tool: str, **given: Any) -> str:
    result = await client.call_tool(tool, given)
    assert result.is_error
    return str(getattr(result.content[0], "text", ""))


def test_a_task_is_started_watched_and_goes_on_after_a_kill(place: Place, client: AgentClient) -> None:
    let(place, 4)

    async def use() -> None:
        with service(place) as served:
            async with Client(f"{served.address}/mcp") as mcp:
                tools = {tool.name for tool in (await mcp.list_tools()).tools}
                assert tools == {"start_task", "send", "status", "approve", "deny"}
                ask = {"agent": "guide", "input": "where is it?", "idempotency_key": "k-1"}
                begun = await call(mcp, "start_task", **ask)
                assert (begun["status"], begun["output"]) in (("queued", None), ("running", None))
                while not place.world("spoke"):
                    await asyncio.sleep(0.02)
                served.kill()
                let(place, 9)
                await asyncio.to_thread(served.start)
                ended = await call(mcp, "status", task_id=begun["task_id"], wait_seconds=40)
                assert (ended["status"], ended["output"]) == ("done", TEXT)
                again = await call(mcp, "start_task", **ask)
                assert again["task_id"] == begun["task_id"]
                more = await call(mcp, "send", session_id=begun["session_id"], input="and now?", wait_seconds=40)
                assert (more["status"], more["session_id"]) == ("done", begun["session_id"])

    asyncio.run(use())
    assert [task.input for task in client.tasks()] == ["and now?", "where is it?"]
    assert len(place.world("looked")) == 2


def test_a_call_is_approved_and_another_denied(place: Place) -> None:
    async def use() -> None:
        with service(place) as served:
            async with Client(f"{served.address}/mcp") as mcp:
                asked = await call(mcp, "start_task", agent="guard", input="open", wait_seconds=40)
                assert asked["status"] == "waiting"
                [question] = asked["questions"]
                assert (question["tool"], question["arguments"]) == ("open_gate", {"gate": 4})
                one = {"task_id": asked["task_id"], "call_id": question["call_id"]}
                done = await call(mcp, "approve", **one, arguments={"gate": 5}, wait_seconds=40)
                assert (done["status"], done["output"]) == ("done", "done: gate 5 is open")
                asked = await call(mcp, "start_task", agent="guard", input="open", wait_seconds=40)
                one = {"task_id": asked["task_id"], "call_id": asked["questions"][0]["call_id"]}
                done = await call(mcp, "deny", **one, reason="not at night", wait_seconds=40)
                assert done["output"] == "done: not at night"

    asyncio.run(use())
    assert place.world("opened") == [{"gate": 5}]


def test_keys_and_names_are_respected(client: AgentClient, url: str) -> None:
    ana, ben = (client.make_key(name, user=name) for name in ("ana", "ben"))
    reader = client.make_key("reader", read_only=True)

    async def use(address: str) -> None:
        @contextlib.asynccontextmanager
        async def as_(key: str) -> AsyncIterator[Client]:
            async with (
                httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as http,
                Client(streamable_http_client(f"{address}/mcp", http_client=http)) as mcp,
            ):
                yield mcp

        async with as_(ana) as mcp:
            mine = await call(mcp, "start_task", agent="echo", input="mine")
            assert "no agent" in await refusal(mcp, "start_task", agent="nobody", input="x")
        async with as_(ben) as mcp:
            assert "there is no task" in await refusal(mcp, "status", task_id=mine["task_id"])
            assert "there is no session" in await refusal(mcp, "send", session_id=mine["session_id"], input="x")
            assert "there is no task" in await refusal(mcp, "approve", task_id=mine["task_id"], call_id="c")
        async with as_(reader) as mcp:
            assert (await call(mcp, "status", task_id=mine["task_id"]))["status"] == "queued"
            assert "may only read" in await refusal(mcp, "start_task", agent="echo", input="x")

    with serving(url) as served:
        asyncio.run(use(served.address))
        hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert httpx.post(f"{served.address}/mcp", json=hello).status_code == 401
        strange = {"Host": "evil.example", "Authorization": "Bearer wrong"}
        assert httpx.post(f"{served.address}/mcp", json=hello, headers=strange).status_code in (400, 401)
    assert [task.user_id for task in client.tasks()] == ["ana"]


def test_a_page_elsewhere_cannot_use_it(url: str) -> None:
    with serving(url) as served:
        hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert httpx.post(f"{served.address}/mcp", json=hello, headers={"Host": "evil.example"}).status_code == 400
        foreign = {"Origin": "https://evil.example"}
        assert httpx.post(f"{served.address}/mcp", json=hello, headers=foreign).status_code == 403
