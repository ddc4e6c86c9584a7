"""Sessions: their state, their messages, their journal."""

from __future__ import annotations

from datetime import datetime

from store.statement import Statement, all_of, one_or_none, query
from store.types import EventRow, SessionId, SessionRow, StoredMessage


def read_session(session: str) -> Statement[SessionRow | None]:
    return Statement(query("read_session"), {"session": session}, one_or_none(SessionRow))


def list_sessions(*, user: str | None = None, limit: int = 100) -> Statement[list[SessionRow]]:
    return Statement(query("list_sessions"), {"user": user, "limit": limit}, all_of(SessionRow))


def read_messages(
    session: SessionId | str, *, after: int = 0, through: int | None = None, continued: str | None = None
) -> Statement[list[StoredMessage]]:
    return Statement(
        query("read_messages"),
        {"session": session, "after": after, "through": through, "continued": continued},
        all_of(StoredMessage),
    )


def read_journal(
    session: str | None = None, *, after: int = 0, since: datetime | None = None, limit: int = 1000
) -> Statement[list[EventRow]]:
    """One session's events after a sequence number, or everybody's since a point in time."""
    return Statement(
        query("read_journal"),
        {"session": session, "after": after, "since": since, "limit": limit},
        all_of(EventRow),
    )
