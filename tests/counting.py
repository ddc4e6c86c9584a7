"""An agent whose worker counts the statements it executes, per turn, without those of its idle loops."""

from __future__ import annotations

import threading
from typing import Any

import psycopg

import agent.engine
from tests.agents import echo as echo
from tests.faults import note

IDLE = ("beat_worker", "agent.workers", "agent.adopt_tasks", "list_lost", "executor_id = ", "task_status GROUP BY")
QUIET_THREADS = ("queue", "Thread-", "dbos-timeout", "perdure-")

_counts = {"statements": 0}
agent.engine.POLL_SECONDS = 0.02


def _count(text: Any) -> None:
    name = threading.current_thread().name
    words = text if isinstance(text, str) else str(text)
    if name.startswith(QUIET_THREADS) or any(idle in words for idle in IDLE):
        return
    _counts["statements"] += 1
    if "agent.commit_task" in words:
        note("turns", dict(_counts))


_execute, _execute_async = psycopg.Cursor.execute, psycopg.AsyncCursor.execute


def execute(self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
    _count(query)
    return _execute(self, query, *args, **kwargs)


async def execute_async(self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
    _count(query)
    return await _execute_async(self, query, *args, **kwargs)


psycopg.Cursor.execute = execute  # type: ignore[method-assign]
psycopg.AsyncCursor.execute = execute_async  # type: ignore[method-assign]
