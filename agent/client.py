"""For application code: accept tasks, follow them, answer for people. Talks to Postgres, needs no HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from store import continuity, effects, sessions, supervision, tasks, workers
from store.database import Connection, Link, run_on
from store.errors import InvalidInput, NotFound, TaskFailed, TimedOut
from store.plain import is_text
from store.types import (
    AlertRow,
    BreakerRow,
    DeadLetterRow,
    DoubtRow,
    EventRow,
    HandoffRow,
    Json,
    NoticeRow,
    QuestionRow,
    SessionRow,
    StepRow,
    StoredMessage,
    TaskId,
    TaskRow,
    TaskStatus,
    WorkerRow,
)

T = TypeVar("T")

SHORTEST_LOOK, LONGEST_LOOK = 0.02, 0.5


class AgentClient:
    """Usable from many threads; use it as a context manager, or call `close()`."""

    def __init__(self, database_url: str) -> None:
        self.url = database_url
        self._link = Link(database_url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._link.close()

    def enqueue(
        self,
        agent: str,
        input: str,
        *,
        session: str | None = None,
        user: str | None = None,
        idempotency_key: str | None = None,
        connection: Connection | None = None,
    ) -> Task:
        """Accept one input for an agent. When this returns, the task is durable and will run.

        With `connection`, the task is accepted by the caller's own transaction, and only if that commits.
        """
        statement = tasks.accept(agent, input, session=session, user=user, idempotency_key=idempotency_key)
        task_id = self._link.run(statement) if connection is None else run_on(connection, statement)
        return Task(self._link, task_id, connection)

    def task(self, task_id: str) -> Task:
        return Task(self._link, TaskId(task_id))

    def session(self, session_id: str) -> Session:
        return Session(self._link, session_id)

    def sessions(self, *, user: str | None = None, limit: int = 100) -> list[SessionRow]:
        return self._link.run(sessions.list_sessions(user=user, limit=limit))

    def tasks(self, *, session: str | None = None, status: str | None = None, limit: int = 100) -> list[TaskRow]:
        """Newest first."""
        return self._link.run(tasks.list_tasks(session=session, status=status, limit=limit))

    def events(self, *, session: str | None = None, after: int = 0, since: datetime | None = None) -> list[EventRow]:
        """One session's journal after a number, or everybody's since a moment."""
        return self._link.run(sessions.read_journal(session, after=after, since=since))

    def living_workers(self) -> list[WorkerRow]:
        return self._link.run(workers.list_living())

    def questions(self) -> list[QuestionRow]:
        """Calls that wait for a person."""
        return self._link.run(tasks.list_questions())

    def doubts(self) -> list[DoubtRow]:
        """Effects whose end nobody recorded."""
        return self._link.run(effects.list_doubts())

    def stranded(self) -> int:
        """How many accepted tasks DBOS does not know, which only a reset of its schema can cause."""
        return self._link.run(workers.stranded_tasks())

    def notices(self, session: str | None = None) -> list[NoticeRow]:
        """What users were told about interruptions, oldest first."""
        return self._link.run(continuity.list_notices(session))

    def acknowledge(self, session_id: str, notice_id: int, *, correction: str | None = None) -> None:
        """Answer a notice. A correction reaches the model in the next context and outranks what was restored."""
        self._link.run(continuity.acknowledge(session_id, notice_id, correction))

    def approve(self, task_id: str, call_id: str) -> Task | None:
        """Let a waiting call run; the task that goes on, once nothing is left to answer."""
        return self._decide(tasks.decide(task_id, call_id, "approved", None))

    def deny(self, task_id: str, call_id: str, *, reason: str | None = None) -> Task | None:
        """Refuse a waiting call; the model is told the reason."""
        return self._decide(tasks.decide(task_id, call_id, "denied", reason))

    def dead_letters(self) -> list[DeadLetterRow]:
        """Tasks that will not be tried again until a person says so, newest first."""
        return self._link.run(supervision.list_dead_letters())

    def retry(self, task_id: str, *, input: str | None = None) -> Task:
        """Put a dead letter back. It goes on from its records; with another input, a new task takes its place."""
        if input is not None and not (input.strip() and is_text(input)):
            raise InvalidInput("the input is empty, or holds characters that are no text")
        return Task(self._link, self._link.run(supervision.retry(task_id, input)))

    def discard(self, task_id: str, *, reason: str | None = None) -> None:
        """Leave a dead letter for good."""
        self._link.run(supervision.discard(task_id, reason))

    def alerts(self, *, resolved: bool = False) -> list[AlertRow]:
        """What a person should know, newest first; those that are over only when asked for."""
        return self._link.run(supervision.list_alerts(all_of_them=resolved))

    def breakers(self) -> list[BreakerRow]:
        """What has crashed too often and waits."""
        return self._link.run(supervision.list_breakers())

    def workers(self) -> list[WorkerRow]:
        """All that were ever known, newest first."""
        return self._link.run(workers.list_workers())

    def _decide(self, statement: Any) -> Task | None:
        next_id = self._link.run(statement)
        return Task(self._link, next_id) if next_id else None


class Task:
    """One accepted input."""

    def __init__(self, link: Link, task_id: TaskId, connection: Connection | None = None) -> None:
        self._link = link
        self._connection = connection
        self.id = task_id

    def __repr__(self) -> str:
        return f"Task({self.id!r})"

    @property
    def session_id(self) -> str:
        return self.read().session_id

    def read(self) -> TaskRow:
        """Everything known of the task now."""
        row = self._link.run(tasks.read_task(self.id))
        if row is None and self._connection is not None and not self._connection.closed:
            row = run_on(self._connection, tasks.read_task(self.id))
        if row is None:
            raise NotFound(f"there is no task {self.id!r}")
        return row

    def status(self) -> TaskStatus:
        return self.read().status

    def steps(self) -> list[StepRow]:
        return self._link.run(tasks.list_steps(self.id))

    def questions(self) -> list[QuestionRow]:
        return self._link.run(tasks.list_questions(task=self.id))

    def continuation(self) -> Task | None:
        """The task that goes on from this one: when it waited and was answered, or had to be replaced."""
        next_id = self._link.run(tasks.find_continuation(self.id))
        return Task(self._link, next_id) if next_id else None

    def settled_status(self, timeout: float | None = None) -> TaskStatus:
        """The status, once the task neither waits for a worker nor runs."""

        def settled() -> TaskStatus | None:
            status = self.status()
            return None if status in ("queued", "running") else status

        return wait_until(settled, timeout, lambda: f"task {self.id} was still {self.status()}")

    def result(self, timeout: float | None = None) -> Json:
        """The agent's output, through any waiting; raises with the reason when there will be none."""
        deadline = None if timeout is None else time.monotonic() + timeout
        followed = self
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            status = followed.settled_status(left)
            if status == "waiting":
                followed = wait_until(followed.continuation, left, lambda: "the task still waited for an answer")
                continue
            row = followed.read()
            if status == "done":
                return row.output
            if status == "cancelled" and (following := followed.continuation()) is not None:
                followed = following
                continue
            raise TaskFailed(f"task {row.task_id} is {status}: {row.error or 'no reason was recorded'}")


def wait_until(look: Callable[[], T | None], timeout: float | None, explain: Callable[[], str]) -> T:
    """Look again and again, ever less often, until there is something to see."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = SHORTEST_LOOK
    while (seen := look()) is None:
        if deadline is not None and time.monotonic() >= deadline:
            raise TimedOut(f"{explain()} after {timeout:g} s")
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_LOOK)
    return seen


class Session:
    """One line of work."""

    def __init__(self, link: Link, session_id: str) -> None:
        self._link = link
        self.id = session_id

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    def read(self) -> SessionRow:
        row = self._link.run(sessions.read_session(self.id))
        if row is None:
            raise NotFound(f"there is no session {self.id!r}")
        return row

    @property
    def state(self) -> str:
        return self.read().state

    def tasks(self) -> list[TaskRow]:
        """Oldest first."""
        return self._link.run(tasks.list_tasks(session=self.id, limit=10_000))[::-1]

    def messages(self) -> list[StoredMessage]:
        return self._link.run(sessions.read_messages(self.id))

    def events(self, after: int = 0) -> list[EventRow]:
        return self._link.run(sessions.read_journal(self.id, after=after))

    def questions(self) -> list[QuestionRow]:
        return self._link.run(tasks.list_questions(session=self.id))

    def notices(self) -> list[NoticeRow]:
        return self._link.run(continuity.list_notices(self.id))

    def handoff(self) -> HandoffRow | None:
        """The newest handoff, if there is one."""
        return self._link.run(continuity.newest_handoff(self.id))

    def search(self, words: str) -> list[StoredMessage]:
        """Original messages that contain the words, newest first, also those a compaction has covered."""
        return self._link.run(continuity.search_messages(self.id, words))
