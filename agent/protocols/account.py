"""The account of a task from its beginning: what was told of it, what is being told, and how it ended."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai import AgentRunResult, AgentRunResultEvent, DeferredToolRequests
from pydantic_ai._agent_graph import GraphAgentState
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.messages import ModelResponse

from agent.feed import follow
from agent.protocols.retelling import Event, Question, Retelling
from store import tasks
from store.bell import Bell
from store.database import Database
from store.stream import Happening, Place
from store.types import TaskRow

Told = Event | AgentRunResultEvent[Any]


class Broken(Exception):
    """The task ended without an answer, or its telling did; the text says why."""


class Stopping(Broken):
    """This process stops; the task goes on, and another process tells it."""


class Account:
    """`whole` begins with the task that this one goes on from, and so on up; else only what is new is told."""

    def __init__(self, database: Database, bell: Bell, task: TaskRow, *, whole: bool = False) -> None:
        self._database = database
        self._bell = bell
        self._whole = whole
        self.task = task
        self.retelling = Retelling()

    async def tell(self) -> AsyncIterator[Told]:
        """Until the task has ended or waits for a person. Closing it early harms nothing: the task goes on."""
        first = await first_of(self._database, self.task) if self._whole else self.task
        start = await self._database.try_once(tasks.find_start(first.task_id))
        told_of: set[str | None] = {first.task_id, first.continues}
        async for happening in follow(self._database, self._bell, first.session_id, Place(start)):
            if happening.task_id not in told_of:
                continue
            for event in self.retelling.tell(happening):
                yield event
            if happening.kind == "task.waited":
                following = await self._database.try_once(tasks.find_continuation(happening.task_id or ""))
                if following is not None:
                    told_of.add(following)
                    continue
            if (end := await self._end(happening)) is not None:
                yield end
                return
        raise Stopping("the service is stopping; the task goes on: ask again for the same answer")

    async def _end(self, happening: Happening) -> AgentRunResultEvent[Any] | None:
        if happening.kind not in ("task.finished", "task.waited", "task.failed", "task.dead", "task.cancelled"):
            return None
        row = await self._database.try_once(tasks.read_task(happening.task_id or ""))
        if row is None:
            raise Broken("the session was deleted")
        self.task = row
        match happening.kind:
            case "task.finished":
                return self._result(row.output)
            case "task.waited":
                return self._result(self._requests())
            case "task.cancelled":
                raise RunCancelled(row.error or "the task was cancelled")
            case "task.dead" if row.status != "dead":
                return None  # somebody had it tried again
            case _:
                raise Broken(row.error or "the task failed")

    @property
    def questions(self) -> list[Question]:
        """What a person is asked, once the task waits."""
        return list(self.retelling.questions.values())

    def _requests(self) -> DeferredToolRequests:
        return DeferredToolRequests(
            approvals=[asked.call for asked in self.questions if asked.kind == "approval"],
            calls=[asked.call for asked in self.questions if asked.kind == "question"],
        )

    def _result(self, output: Any) -> AgentRunResultEvent[Any]:
        response = ModelResponse(parts=self.retelling.response)
        return AgentRunResultEvent(AgentRunResult(output, _state=GraphAgentState(message_history=[response])))


async def first_of(database: Database, task: TaskRow) -> TaskRow:
    """The task with which an answer began, before it waited for people."""
    while task.continues is not None:
        before = await database.try_once(tasks.read_task(task.continues))
        if before is None:
            break
        task = before
    return task


def as_text(output: Any) -> str:
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
