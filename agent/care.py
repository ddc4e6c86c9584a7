"""Small workflows beside the tasks: what is owed to a session after an interruption, exactly once.

They are enqueued by the transaction that ends the interruption, and survive whoever runs them like any task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from dbos import DBOS
from pydantic_ai.messages import ModelMessagesTypeAdapter

from agent import metrics, outside
from agent.draft import extract
from agent.log import log
from agent.purse import paying
from agent.recorder import record
from agent.registry import Agents
from agent.scribe import brief_with
from steps import handoff, webhook
from store import continuity, sessions, spending, supervision
from store.database import Database
from store.documents import HandoffReason
from store.exam import Examiner
from store.statement import Statement
from store.types import NoticeRow, Spent

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
    @DBOS.workflow(name="tend_session", max_recovery_attempts=None)
    async def tend_session(  # pyright: ignore[reportUnusedFunction]
        session: str, task: str, reason: str, occasion: str, notice: int, times: int
    ) -> None:
        await write(care, session, task, cast(HandoffReason, reason), occasion)
        await tell(care, notice, times)
        await improve(care, session, task, occasion)

    @DBOS.workflow(name="deliver_notice", max_recovery_attempts=None)
    async def deliver_notice(notice: int, times: int) -> None:  # pyright: ignore[reportUnusedFunction]
        await tell(care, notice, times)

    @DBOS.workflow(name="deliver_alert", max_recovery_attempts=None)
    async def deliver_alert(alert: int, moment: str) -> None:  # pyright: ignore[reportUnusedFunction]
        await tell_alert(care, alert, cast(outside.Moment, moment))


async def write(care: Care, session: str, task: str, reason: HandoffReason, occasion: str) -> None:
    async def step() -> float:
        with paying([]) as account:
            score = await handoff.write_handoff(
                care.database, session=session, task=task, reason=reason, occasion=occasion, examiner=care.examiner
            )
        await settle(care, task, account)
        return score

    await record(handoff.WRITE, step)


async def settle(care: Care, task: str, account: list[Spent]) -> None:
    """Put what was asked beside a task on its account."""
    if account and (agent := await care.database.run(spending.spend(task, account))):
        metrics.pay(agent, account)


async def tell(care: Care, notice: int, times: int) -> None:
    """Send a notice out; those of restarts in quick succession together, when it is over."""
    if care.address is None:
        return
    if times > 1:
        await DBOS.sleep_async(ROLL_UP_SECONDS)

    async def read() -> webhook.Message | None:
        told = await care.database.run(continuity.read_notice(notice))
        return None if told is None or 1 < times < told.times else message_about(told, times)

    await send(care, f"notice {notice}", read, lambda problem: continuity.note_delivery(notice, problem))


async def tell_alert(care: Care, alert: int, moment: outside.Moment) -> None:
    """An alert is one line in the log and one message to the outside, and so is its end."""

    async def say() -> None:
        raised = await care.database.run(supervision.read_alert(alert))
        if raised is not None and moment == "raised":
            log.error("ALERT %s %s %s", raised.what, raised.did, raised.advice)
        elif raised is not None:
            log.info("alert resolved: %s", raised.what)

    async def read() -> webhook.Message | None:
        raised = await care.database.run(supervision.read_alert(alert))
        return outside.message_about(raised, moment) if raised is not None else None

    await record("alert.say", say)
    await send(care, f"alert {alert}", read, lambda problem: supervision.note_alert(alert, problem))


async def send(
    care: Care,
    what: str,
    read: Callable[[], Awaitable[webhook.Message | None]],
    noted: Callable[[str | None], Statement[None]],
) -> None:
    """Try again and again until the message is received or has to be given up."""
    address = care.address
    if address is None:
        return

    async def step() -> str | None:
        message = await read()
        if message is None:
            return None
        problem = await webhook.deliver(message, address)
        if problem is None:
            await care.database.run(noted(None))
        return problem

    for wait in (*address.waits, None):
        problem = await record(webhook.DELIVER, step)
        if problem is None:
            return
        if wait is not None:
            await DBOS.sleep_async(wait)

    async def give_up() -> None:
        await care.database.run(noted(problem))
        log.error("%s did not reach %s and is given up: %s", what, address.host, problem)

    await record("webhook.give_up", give_up)


def message_about(notice: NoticeRow, times: int) -> webhook.Message:
    kind = "notice.created" if times == 1 else "notice.updated"
    told: dict[str, Any] = notice.model_dump(mode="json", exclude={"delivered_at", "delivery_error"})
    return webhook.Message(id=f"notice-{notice.notice_id}-{times}", type=kind, at=notice.at, data=told)


async def improve(care: Care, session: str, task: str, occasion: str) -> None:
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
        with paying([]) as account:
            improved = await handoff.improve_handoff(
                care.database, occasion=occasion, brief=brief, seconds=care.brief_seconds
            )
        await settle(care, task, account)
        return improved

    await record(handoff.IMPROVE, step)
