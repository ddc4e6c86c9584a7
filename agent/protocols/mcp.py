"""MCP: `POST /mcp` (streamable HTTP), so that other agents can give work to these.

Each request stands for itself: nothing of a client is kept here, so that a restart costs it nothing. The task it
started is in Postgres, and `status` finds it from anywhere.
"""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agent.api.caller import bearer, check_task, database_of, find_session, find_task, recognise
from agent.api.events import bell_of
from agent.api.messages import accept_message
from agent.keyring import Caller
from agent.protocols import thread
from store import tasks
from store.bell import Bell
from store.database import Database
from store.errors import NotAllowed, PerdureError
from store.types import Decision, TaskRow

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

router = APIRouter(include_in_schema=False)

LONGEST_WAIT = 50.0
"""Seconds; clients give up after a minute."""

ENDED = ("waiting", "done", "failed", "cancelled", "dead")

Wait = Annotated[float, Field(ge=0, le=LONGEST_WAIT, description="Seconds to wait for the task to end.")]
Key = Annotated[str | None, Field(max_length=500, description="The same key again gives the same task.")]


class Desk:
    """The tools, for one caller."""

    def __init__(self, store: Database, bell: Bell, caller: Caller) -> None:
        self.store = store
        self.bell = bell
        self.caller = caller

    async def start_task(
        self, agent: str, input: str, user: str | None = None, idempotency_key: Key = None, wait_seconds: Wait = 0
    ) -> dict[str, Any]:
        """Give an agent an input in a new session. The task is durable from now on; ask for it with `status`."""
        self._check_may_act()
        key = f"mcp:{idempotency_key}" if idempotency_key else None
        session = thread.new_session(self.caller, user, key)
        task = await accept_message(self.store, self.caller, session, input, agent=agent, user=user, key=key)
        return await self._report(task.task_id, wait_seconds)

    async def send(
        self, session_id: str, input: str, idempotency_key: Key = None, wait_seconds: Wait = 0
    ) -> dict[str, Any]:
        """Say something more in a session that there is."""
        self._check_may_act()
        await find_session(self.store, self.caller, session_id)
        key = f"mcp:{session_id}:{idempotency_key}" if idempotency_key else None
        task = await accept_message(self.store, self.caller, session_id, input, agent=None, user=None, key=key)
        return await self._report(task.task_id, wait_seconds)

    async def status(self, task_id: str, wait_seconds: Wait = 0) -> dict[str, Any]:
        """How a task stands: its status, its output, and the calls that wait for a person."""
        return await self._report(task_id, wait_seconds)

    async def approve(
        self, task_id: str, call_id: str, arguments: dict[str, Any] | None = None, wait_seconds: Wait = 0
    ) -> dict[str, Any]:
        """Let a call run that waits for a person, if need be with other arguments."""
        return await self._decide(task_id, call_id, "approved", None, arguments, wait_seconds)

    async def deny(
        self, task_id: str, call_id: str, reason: str | None = None, wait_seconds: Wait = 0
    ) -> dict[str, Any]:
        """Refuse a call that waits for a person; the model is told the reason."""
        return await self._decide(task_id, call_id, "denied", reason, None, wait_seconds)

    async def _decide(
        self,
        task_id: str,
        call_id: str,
        decision: Decision,
        note: str | None,
        arguments: dict[str, Any] | None,
        wait_seconds: float,
    ) -> dict[str, Any]:
        self._check_may_act()
        await check_task(self.store, self.caller, task_id)
        await self.store.try_once(tasks.decide(task_id, call_id, decision, note, arguments))
        return await self._report(task_id, wait_seconds)

    async def _report(self, task_id: str, wait_seconds: float) -> dict[str, Any]:
        task = await self._newest(await find_task(self.store, self.caller, task_id))
        deadline = asyncio.get_running_loop().time() + wait_seconds
        with self.bell.ear(task.session_id) as ear:
            while task.status not in ENDED and self.bell.is_up:
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                await ear.heard(min(left, 5.0))
                task = await self._newest(await find_task(self.store, self.caller, task.task_id))
        asked = await self.store.try_once(tasks.list_questions(task=task.task_id))
        return {
            "task_id": task.task_id,
            "session_id": task.session_id,
            "agent": task.agent,
            "status": task.status,
            "output": task.output,
            "error": task.error,
            "questions": [
                {"call_id": each.call_id, "tool": each.tool, "arguments": each.arguments, "kind": each.kind,
                 "reason": each.reason}
                for each in asked
            ],
        }  # fmt: skip

    async def _newest(self, task: TaskRow) -> TaskRow:
        """What a task that waited goes on as."""
        while (following := await self.store.try_once(tasks.find_continuation(task.task_id))) is not None:
            task = await find_task(self.store, self.caller, following)
        return task

    def _check_may_act(self) -> None:
        if self.caller.is_read_only:
            raise NotAllowed("this key may only read")


def build_server(desk: Desk) -> MCPServer[Any]:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    server: MCPServer[Any] = MCPServer(
        "perdure", log_level="ERROR", instructions="Agents whose tasks outlive every process that ever worked on them."
    )

    def said(tool: Any) -> Any:
        @wraps(tool)
        async def call(*args: Any, **kwargs: Any) -> dict[str, Any]:
            try:
                return dict(await tool(*args, **kwargs))
            except PerdureError as refusal:
                raise ToolError(str(refusal)) from None

        return call

    for tool in (desk.start_task, desk.send, desk.status, desk.approve, desk.deny):
        server.add_tool(said(tool))
    return server


class Endpoint:
    """An ASGI application behind the same door as everything else."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        request = Request(scope, receive)
        caller = await recognise(request, await bearer(request))
        desk = Desk(database_of(request), bell_of(request), caller)
        server = build_server(desk)
        manager = StreamableHTTPSessionManager(server._lowlevel_server, json_response=True, stateless=True)
        async with manager.run():
            await manager.handle_request(scope, receive, send)


router.routes.append(Route("/mcp", Endpoint(), methods=["GET", "POST", "DELETE"], include_in_schema=False))
