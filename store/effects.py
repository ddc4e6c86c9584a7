"""The ledger of effects."""

from __future__ import annotations

from typing import Literal

from psycopg.types.json import Jsonb

from store.statement import Statement, all_of, query, value
from store.types import DoubtRow, InDoubtPolicy, Json, OwnerToken, TaskId, Wish, WorkerId


def start_effect(
    task: TaskId,
    owner: OwnerToken,
    worker: WorkerId,
    *,
    key: str,
    call: str,
    tool: str,
    arguments: Json,
    policy: InDoubtPolicy,
) -> Statement[Literal["fresh", "in doubt"] | Wish]:
    return Statement(
        query("start_effect"),
        {
            "task": task,
            "owner": owner,
            "worker": worker,
            "key": key,
            "call": call,
            "tool": tool,
            "arguments": Jsonb(arguments),
            "policy": policy,
        },
        value,
    )


def list_doubts(session: str | None = None) -> Statement[list[DoubtRow]]:
    return Statement(query("list_doubts"), {"session": session}, all_of(DoubtRow))
