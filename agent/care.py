"""Small workflows beside the tasks: what is owed to a session after an interruption, exactly once.

They are enqueued by the transaction that ends the interruption, and survive whoever runs them like any task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from dbos import DBOS
from pydantic_ai.messages import ModelMessagesTypeAdapter

from agent.log import log
from agent.recorder import record
from agent.registry import Agents
from agent.request import extract
from agent.scribe import brief_with
from steps import handoff, webhook
from store import continuity, sessions
from store.database import Database
from store.documents import HandoffReason
from store.exam import Examiner
from store.types import NoticeRow

ROLL_UP_SECONDS = 60.0
"""Restarts in quick succession share one notice: the first is told at once, the rest together when it is over."""
BRIEFED_TOKENS = 4000
BRIEFED_MESSAGES = 40


@dataclass(frozen=True)
class Care:
    """What care needs: who may be asked, for how long, and where messages go."""

    database: Database
    agents: Agents
    brief_seconds: float
    examiner: Examiner | None
    address: webhook.Address | None


def register_care(care: Care) -> None:
    @DBOS.workflow(name="tend_session")
    async def tend_session(  # pyright: ignore[reportUnusedFunction]
        session: str, task: str, reason: str, occasion: str, notice: int, times: int
    ) -> None:
        await write(care, session, task, cast(HandoffReason, reason), occasion)
        await tell(care, notice, times)
        await improve(care, session, occasion)

    @DBOS.workflow(name="deliver_notice")
    async def deliver_notice(notice: int, times: int) -> None:  # pyright: ignore[reportUnusedFunction]
        await tell(care, notice, times)


async def write(care: Care, session: str, task: str, reason: HandoffReason, occasion: str) -> None:
    async def step() -> float:
        return await handoff.write_handoff(
            care.database, session=session, task=task, reason=reason, occasion=occasion, examiner=care.examiner
        )

    await record(handoff.WRITE, step)


async def tell(care: Care, notice: int, times: int) -> None:
    """Send the notice out, again and again until it is received or has to be given up."""
    address = care.address
    if address is None:
        return
    if times > 1:
        await DBOS.sleep_async(ROLL_UP_SECONDS)

    async def step() -> str | None:
        told = await care.database.run(continuity.read_notice(notice))
        if told is None or 1 < times < told.times:
            return None
        problem = await webhook.deliver(message_about(told, times), address)
        if problem is None:
            await care.database.run(continuity.note_delivery(notice, None))
        return problem

    for wait in (*address.waits, None):
        problem = await record(webhook.DELIVER, step)
        if problem is None:
            return
        if wait is not None:
            await DBOS.sleep_async(wait)

    async def give_up() -> None:
        await care.database.run(continuity.note_delivery(notice, problem))
        log.error("notice %d did not reach %s and is given up: %s", notice, address.url, problem)

    await record("webhook.give_up", give_up)


def message_about(notice: NoticeRow, times: int) -> webhook.Message:
    kind = "notice.created" if times == 1 else "notice.updated"
    told: dict[str, Any] = notice.model_dump(mode="json", exclude={"delivered_at", "delivery_error"})
    return webhook.Message(id=f"notice-{notice.notice_id}-{times}", type=kind, at=notice.at, data=told)


async def improve(care: Care, session: str, occasion: str) -> None:
    """The agent's model has a moment to add what the facts leave out; without it, the facts stand."""
    if not care.brief_seconds:
        return

    async def step() -> bool:
        written = await care.database.run(continuity.read_occasion(occasion))
        agent = care.agents.get(str(written.document["agent"])) if written else None
        if agent is None or agent.model is None:
            return False
        stored = await care.database.run(sessions.read_messages(session))
        said = ModelMessagesTypeAdapter.validate_python([row.message for row in stored[-BRIEFED_MESSAGES:]])
        brief = brief_with(agent.model, extract(None, said, BRIEFED_TOKENS))
        return await handoff.improve_handoff(care.database, occasion=occasion, brief=brief, seconds=care.brief_seconds)

    await record(handoff.IMPROVE, step)
