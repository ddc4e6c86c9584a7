"""A client's thread is a session: what it says there becomes a task, what it decides goes to the task that asked."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.api.caller import find_session
from agent.api.messages import accept_message
from agent.api.sessions import KEYED
from agent.keyring import Caller
from store import tasks
from store.database import Database
from store.errors import InvalidInput, NotFound
from store.plain import is_text
from store.types import Decision, TaskRow

LONGEST_ID = 200


@dataclass(frozen=True)
class Answer:
    """What a person decided about a call."""

    decision: Decision
    note: str | None = None
    arguments: dict[str, Any] | None = None


def check_id(given: str, what: str) -> str:
    """Ids that clients choose become session ids and parts of keys."""
    if not 0 < len(given) <= LONGEST_ID or not is_text(given) or not given.isprintable():
        raise InvalidInput(f"the {what} has 1 to {LONGEST_ID} printable characters")
    return given


def new_session(caller: Caller, user: str | None, key: str | None) -> str:
    """The id of a session that has none yet; the same for the same key, as the task will be."""
    return str(uuid.uuid5(KEYED, f"{caller.user or user or ''}\0{key}") if key else uuid.uuid4())


async def say(
    store: Database, caller: Caller, *, agent: str, session: str, text: str, key: str | None, user: str | None = None
) -> TaskRow:
    """The task that answers this; with the same key it is the same task, however often it is asked for."""
    if not text.strip():
        raise InvalidInput("the last message has no text; agents are given text")
    return await accept_message(store, caller, session, text, agent=agent, user=user, key=key)


async def decide(store: Database, caller: Caller, session: str, answers: Mapping[str, Answer]) -> TaskRow:
    """The task that goes on, or while others are still to be decided the one that waits. Deciding alike twice is
    deciding once."""
    await find_session(store, caller, session)
    asker: str | None = None
    for call, answer in answers.items():
        asker = await store.try_once(tasks.find_asker(session, call))
        if asker is None:
            raise NotFound(f"nothing is asked about call {call!r}")
        following = await store.try_once(tasks.decide(asker, call, answer.decision, answer.note, answer.arguments))
        asker = following or asker
    row = await store.try_once(tasks.read_task(asker or ""))
    if row is None:
        raise NotFound("nothing is asked in this thread")
    return row
