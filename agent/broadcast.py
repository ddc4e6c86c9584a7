"""Answers in the making, told to whoever follows their sessions: one statement now and then for all of a worker's."""

from __future__ import annotations

import asyncio
import secrets
from contextvars import Context
from typing import Any

from pydantic_ai.messages import (
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)

from agent.log import log
from agent.recorder import Execution
from store import stream
from store.database import Database
from store.errors import PerdureError
from store.stream import Piece

TICK_SECONDS = 0.1


class Answer:
    """One attempt at an answer. Pieces that belong to the same part and follow each other are told as one."""

    def __init__(self, execution: Execution) -> None:
        self.task = execution.task
        self.owner = execution.owner
        self.attempt = secrets.token_hex(8)
        self.pieces: list[dict[str, Any]] = []
        self.told = 0

    def hear(self, event: ModelResponseStreamEvent) -> None:
        said = spoken(event)
        if said is None:
            return
        last = self.pieces[-1] if len(self.pieces) > self.told else None
        if last is not None and last["part"] == said["part"] and "tool" not in said:
            last["delta"] += said["delta"]
        else:
            self.pieces.append(said)

    def untold(self) -> list[Piece]:
        return [
            Piece(self.task.task_id, self.owner, self.attempt, number, self.task.session_id, piece)
            for number, piece in enumerate(self.pieces[self.told :], self.told + 1)
        ]


def spoken(event: ModelResponseStreamEvent) -> dict[str, Any] | None:
    """What an event adds to an answer, as it is told; None when that is nothing."""
    match event:
        case PartStartEvent(index=part, part=TextPart(content=text)):
            return {"part": part, "kind": "text", "delta": text}
        case PartStartEvent(index=part, part=ThinkingPart(content=text)):
            return {"part": part, "kind": "thinking", "delta": text}
        case PartStartEvent(index=part, part=ToolCallPart() as call):
            asked = {"tool": call.tool_name, "call_id": call.tool_call_id}
            return {"part": part, "kind": "tool-call", "delta": call.args_as_json_str() if call.args else "", **asked}
        case PartDeltaEvent(index=part, delta=TextPartDelta(content_delta=text)) if text:
            return {"part": part, "kind": "text", "delta": text}
        case PartDeltaEvent(index=part, delta=ThinkingPartDelta(content_delta=str(text))) if text:
            return {"part": part, "kind": "thinking", "delta": text}
        case PartDeltaEvent(index=part, delta=ToolCallPartDelta(args_delta=str(text))) if text:
            return {"part": part, "kind": "tool-call", "delta": text}
        case _:
            return None


class Broadcast:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._answers: set[Answer] = set()
        self._telling: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    def begin(self, execution: Execution) -> Answer:
        answer = Answer(execution)
        self._answers.add(answer)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(), context=Context())  # it is no task's own
        return answer

    async def end(self, answer: Answer) -> None:
        """After this nothing is told of the answer any more: its record is about to take its place."""
        self._answers.discard(answer)
        async with self._writing:
            pass

    async def _tell(self) -> None:
        while self._answers:
            await asyncio.sleep(TICK_SECONDS)
            async with self._writing:
                await self._tell_once()

    async def _tell_once(self) -> None:
        pieces = [piece for answer in self._answers for piece in answer.untold()]
        if not pieces:
            return
        for answer in self._answers:
            answer.told = len(answer.pieces)  # what is heard from now on is a piece of its own
        try:
            await self._database.try_once(stream.tell(pieces))
        except PerdureError as error:
            # Followers miss nothing but the sight of it; and after a crash of Postgres all of it is told again.
            log.debug("answers in the making cannot be told: %s", error)
            for answer in self._answers:
                answer.told = 0
