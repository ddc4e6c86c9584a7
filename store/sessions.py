"""Sessions: their state, their messages, their journal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from psycopg.types.json import Jsonb

from store import files
from store.errors import NotFound
from store.statement import Rows, Script, Statement, all_of, count, nothing, one_or_none, query, value
from store.types import EffectRow, EventRow, Json, SaidRow, SessionId, SessionRow, StoredMessage, TaskId


def read_session(session: str) -> Statement[SessionRow | None]:
    return Statement(query("read_session"), {"session": session}, one_or_none(SessionRow))


def list_sessions(
    *,
    user: str | None = None,
    agent: str | None = None,
    state: str | None = None,
    words: str | None = None,
    limit: int = 100,
    by_birth: bool = False,
    after: tuple[datetime, str] | None = None,
) -> Statement[list[SessionRow]]:
    """Last active first, or newest first; those that come after a moment and an id in that order."""
    moment, last = after or (None, None)
    wanted = {
        "user": user, "agent": agent, "state": state, "words": words, "limit": limit, "by_birth": by_birth,
        "moment": moment, "after": last,
    }  # fmt: skip
    return Statement(query("list_sessions"), wanted, all_of(SessionRow))


def make(session: str, agent: str, *, user: str | None, title: str | None) -> Statement[bool]:
    """Whether the session is new."""
    return Statement(query("make_session"), {"session": session, "agent": agent, "user": user, "title": title}, value)


def name(session: str, title: str | None, *, only_if_missing: bool = False) -> Statement[None]:
    def read(rows: Rows) -> None:
        if not rows:
            raise NotFound(f"there is no session {session!r}")

    return Statement(
        query("name_session"), {"session": session, "title": title, "only_if_missing": only_if_missing}, read
    )


def title_for(text: str) -> str:
    """What a session is called after its first input."""
    return " ".join(text.split())[:80]


def read_conversation(
    session: str, *, after: tuple[str, int] | None = None, limit: int | None = None
) -> Statement[list[SaidRow]]:
    """In order; after a message by its position or a notice by its number, as `('message', 12)`."""
    kind, number = after or (None, None)
    wanted = {
        "session": session,
        "position": number if kind == "message" else None,
        "notice": number if kind == "notice" else None,
        "limit": limit,
    }
    return Statement(query("read_conversation"), wanted, all_of(SaidRow))


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


def set_mode(session: str, mode: Literal["open", "paused", "closed"], person: str | None = None) -> Statement[None]:
    return Statement(query("set_mode"), {"session": session, "mode": mode, "person": person}, nothing)


def find_digests(digests: Sequence[str]) -> Statement[set[str]]:
    """Those that begin the SHA-256 of the id of a session that exists."""
    return Statement(
        query("find_sessions"), {"digests": list(digests)}, lambda rows: {str(row["digest"]) for row in rows}
    )


def speak(session: str, person: str, words: str) -> Statement[TaskId]:
    return Statement(query("speak"), {"session": session, "person": person, "words": words}, value)


def give_back(session: str, note: str | None) -> Statement[None]:
    return Statement(query("give_session_back"), {"session": session, "note": note}, nothing)


def effects_after(session: str, at: int) -> Statement[list[EffectRow]]:
    return Statement(query("list_effects_after"), {"session": session, "at": at}, all_of(EffectRow))


def fork(session: str, *, at: int | None, new: str | None, title: str | None) -> Statement[SessionId]:
    return Statement(query("fork_session"), {"session": session, "at": at, "new": new, "title": title}, value)


def rewind(session: str, to: int) -> Statement[int]:
    return Statement(query("rewind_session"), {"session": session, "to": to}, value)


def delete(session: str) -> Statement[None]:
    return Statement(query("delete_session"), {"session": session}, nothing)


def export(session: str) -> Statement[Json]:
    def read(rows: Rows) -> Json:
        return value(rows) if rows else None

    return Statement(query("export_session"), {"session": session}, read)


def export_whole(session: str) -> Script[Json]:
    """Everything of a session as one JSON document, its files and its shared past included."""
    document = yield export(session)
    if document is None:
        raise NotFound(f"there is no session {session!r}")
    contents = []
    for file in (yield files.read_manifest(session)):
        contents.append(files.exported(file, (yield files.read_blob(file))))
    return {**document, "files": contents}


def import_session(document: Json, session: str | None, user: str | None) -> Statement[SessionId]:
    return Statement(query("import_session"), {"document": Jsonb(document), "session": session, "user": user}, value)


def expire_sessions(seconds: float) -> Statement[int]:
    """How many sessions were closed because nobody touched them for so long."""
    return Statement(query("expire_sessions"), {"seconds": seconds}, count)
