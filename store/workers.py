"""Workers: born, beating, adopted from, gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from psycopg.types.json import Jsonb

from store.statement import Statement, all_of, count, nothing, query, value
from store.supervision import CrashPolicy
from store.types import Adoption, AgentCard, Gauges, WorkerId, WorkerRow, WorkerState


def register_worker(
    worker: WorkerId,
    *,
    host: str,
    pid: int,
    process: str,
    version: str,
    agents: Sequence[str],
    beat_seconds: float,
) -> Statement[None]:
    return Statement(
        query("register_worker"),
        {
            "worker": worker,
            "host": host,
            "pid": pid,
            "process": process,
            "version": version,
            "agents": list(agents),
            "beat_seconds": beat_seconds,
        },
        nothing,
    )


def register_agents(cards: Sequence[AgentCard]) -> Statement[None]:
    return Statement(query("register_agents"), {"agents": Jsonb([card.model_dump() for card in cards])}, nothing)


def beat(worker: WorkerId) -> Statement[int]:
    """How many rows beat: none when others have declared this worker dead."""
    return Statement(query("beat_worker"), {"worker": worker}, count)


def set_state(worker: WorkerId, state: WorkerState) -> Statement[None]:
    return Statement(query("set_worker_state"), {"worker": worker, "state": state}, nothing)


def list_workers(
    *, living: bool = False, limit: int | None = None, after: tuple[datetime, str] | None = None
) -> Statement[list[WorkerRow]]:
    """Newest first; those that come after a moment and an id in that order."""
    moment, last = after or (None, None)
    wanted = {"living": living, "limit": limit, "moment": moment, "after": last}
    return Statement(query("list_workers"), wanted, all_of(WorkerRow))


def list_agents(*, after: str | None = None, limit: int | None = None) -> Statement[list[AgentCard]]:
    """Those that can be enqueued for, by name."""
    return Statement(query("list_agents"), {"after": after, "limit": limit}, all_of(AgentCard))


def list_living() -> Statement[list[WorkerRow]]:
    """Those that were heard of within twice their interval."""
    return Statement(query("list_living_workers"), {}, all_of(WorkerRow))


def adopt_tasks(
    me: WorkerId, gone: Sequence[str], *, judge_silence: bool, policy: CrashPolicy
) -> Statement[list[Adoption]]:
    return Statement(
        query("adopt_tasks"),
        {
            "me": me,
            "gone": list(gone),
            "judge_silence": judge_silence,
            "waits": list(policy.waits),
            "isolate_after": policy.isolate_after,
            "limit": policy.limit,
            "window": policy.window_seconds,
        },
        all_of(Adoption),
    )


def leave(me: WorkerId) -> Statement[int]:
    """How many tasks a planned stop gave back to the queue."""
    return Statement(query("leave_worker"), {"me": me}, count)


def free_lost(me: WorkerId, active: Sequence[str], *, seconds: float) -> Statement[int]:
    """How many tasks this worker had been given so long ago without running them; they are queued again."""
    return Statement(query("free_lost_tasks"), {"me": me, "active": list(active), "seconds": seconds}, count)


def note_process_end(process: str, how: str, *, is_hang: bool) -> Statement[None]:
    return Statement(query("note_process_end"), {"process": process, "how": how, "is_hang": is_hang}, nothing)


def count_servers(agent: str) -> Statement[int]:
    """How many living workers serve an agent."""
    return Statement(query("count_servers"), {"agent": agent}, value)


def ping() -> Statement[int]:
    return Statement(query("ping"), {}, value)


def stranded_tasks() -> Statement[int]:
    """How many accepted tasks DBOS does not know."""
    return Statement(query("count_stranded_tasks"), {}, value)


def read_gauges() -> Statement[Gauges]:
    return Statement(query("read_gauges"), {}, lambda rows: Gauges.model_validate(value(rows)))
