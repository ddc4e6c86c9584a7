"""Small workflows beside the tasks: what is owed to a session after an interruption, exactly once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from dbos import DBOS

from agent.recorder import record
from steps import handoff
from store.database import Database
from store.documents import HandoffReason

WORKFLOW = "write_handoff"

WriteHandoff = Callable[[str, str, str, str], Awaitable[float]]


def register_care(database: Database) -> WriteHandoff:
    """Make the workflow known to DBOS. It is enqueued by the transaction that adopts a dead worker's tasks."""

    @DBOS.workflow(name=WORKFLOW)
    async def write_handoff(session: str, task: str, reason: str, occasion: str) -> float:
        async def write() -> float:
            return await handoff.write_handoff(
                database, session=session, task=task, reason=cast(HandoffReason, reason), occasion=occasion
            )

        return await record(handoff.WRITE, write)

    return write_handoff
