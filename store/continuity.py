"""What a session needs to go on: checkpoint, notices, handoffs, compactions."""

from __future__ import annotations

from psycopg.types.json import Jsonb

from store.documents import Checkpoint, Handoff
from store.statement import Rows, Statement, all_of, nothing, one_or_none, query, value
from store.types import (
    CompactionRow,
    HandoffFacts,
    HandoffRow,
    NoticeRow,
    OwnerToken,
    Restored,
    StoredMessage,
    TaskId,
    WorkerId,
)


def read_restored(session: str, task: str, *, is_recovering: bool = False) -> Statement[Restored]:
    return Statement(
        query("read_restored"),
        {"session": session, "task": task, "is_recovering": is_recovering},
        lambda rows: Restored.model_validate(value(rows)),
    )


def write_checkpoint(task: TaskId, owner: OwnerToken, checkpoint: Checkpoint) -> Statement[None]:
    document = Jsonb(checkpoint.model_dump(mode="json"))
    return Statement(query("write_checkpoint"), {"task": task, "owner": owner, "document": document}, nothing)


def tend_checkpoints(me: WorkerId) -> Statement[None]:
    return Statement(query("tend_checkpoints"), {"me": me}, nothing)


def list_notices(
    session: str | None = None, *, user: str | None = None, after: int = 0, limit: int | None = None
) -> Statement[list[NoticeRow]]:
    wanted = {"session": session, "user": user, "after": after, "limit": limit}
    return Statement(query("list_notices"), wanted, all_of(NoticeRow))


def acknowledge(session: str, notice: int, correction: str | None) -> Statement[None]:
    return Statement(
        query("acknowledge_notice"), {"session": session, "notice": notice, "correction": correction}, nothing
    )


def read_handoff_facts(session: str, task: str | None) -> Statement[HandoffFacts | None]:
    def read(rows: Rows) -> HandoffFacts | None:
        found = value(rows) if rows else None
        return HandoffFacts.model_validate(found) if found else None

    return Statement(query("read_handoff_facts"), {"session": session, "task": task}, read)


def write_handoff(
    handoff: Handoff, *, task: str | None, occasion: str, markdown: str, exam_score: float
) -> Statement[None]:
    return Statement(
        query("write_handoff"),
        {
            "session": handoff.session,
            "task": task,
            "reason": handoff.reason,
            "occasion": occasion,
            "document": Jsonb(handoff.model_dump(mode="json")),
            "markdown": markdown,
            "score": exam_score,
        },
        nothing,
    )


def read_occasion(occasion: str) -> Statement[HandoffRow | None]:
    return Statement(query("read_occasion"), {"occasion": occasion}, one_or_none(HandoffRow))


def improve_handoff(handoff: Handoff, *, occasion: str, markdown: str) -> Statement[None]:
    document = Jsonb(handoff.model_dump(mode="json"))
    return Statement(
        query("improve_handoff"), {"occasion": occasion, "document": document, "markdown": markdown}, nothing
    )


def newest_handoff(session: str) -> Statement[HandoffRow | None]:
    return Statement(query("read_handoff"), {"session": session}, one_or_none(HandoffRow))


def list_compactions(session: str) -> Statement[list[CompactionRow]]:
    return Statement(query("list_compactions"), {"session": session}, all_of(CompactionRow))


def record_compaction(
    task: TaskId, owner: OwnerToken, *, through: int, tokens_before: int, tokens_after: int, strategy: str,
    summary: str | None, exam_score: float | None, note: str | None,
) -> Statement[None]:  # fmt: skip
    return Statement(
        query("record_compaction"),
        {
            "task": task, "owner": owner, "through": through, "before": tokens_before, "after": tokens_after,
            "strategy": strategy, "summary": summary, "score": exam_score, "note": note,
        },
        nothing,
    )  # fmt: skip


def set_coherence(session: str, task: str, score: float, note: str | None, *, lowest: float) -> Statement[None]:
    return Statement(
        query("set_coherence"),
        {"session": session, "task": task, "score": score, "note": note, "lowest": lowest},
        nothing,
    )


def read_notice(notice: int) -> Statement[NoticeRow | None]:
    return Statement(query("read_notice"), {"notice": notice}, one_or_none(NoticeRow))


def note_delivery(notice: int, problem: str | None) -> Statement[None]:
    return Statement(query("note_delivery"), {"notice": notice, "problem": problem}, nothing)


def search_messages(session: str, words: str, *, limit: int = 10) -> Statement[list[StoredMessage]]:
    return Statement(
        query("search_messages"), {"session": session, "words": words, "limit": limit}, all_of(StoredMessage)
    )
