"""For application code: accept tasks, follow them, answer for people. Talks to Postgres, needs no HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from agent import tracing
from agent.paths import parts_of
from store import continuity, effects, files, keys, schedules, sessions, spending, supervision, tasks, workers
from store.database import Connection, Link, run_on
from store.errors import InvalidInput, NotFound, TaskFailed, TimedOut
from store.timetable import read_timetable
from store.types import (
    AlertRow,
    BreakerRow,
    BudgetRow,
    CompactionRow,
    DeadLetterRow,
    DoubtRow,
    EffectRow,
    EventRow,
    FileRow,
    HandoffRow,
    Json,
    KeyRow,
    Missed,
    NoticeRow,
    Period,
    QuestionRow,
    SaidRow,
    ScheduleRow,
    Scope,
    SessionRow,
    StepRow,
    StoredMessage,
    TaskId,
    TaskRow,
    TaskStatus,
    UsageBy,
    UsageRow,
    WhenBusy,
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
        when_busy: WhenBusy = "queue",
        connection: Connection | None = None,
        traceparent: str | None = None,
    ) -> Task:
        """Accept one input for an agent. When this returns, the task is durable and will run.

        While a task of the session runs, the input waits for its turn (`queue`), reaches the running task before its
        next model request (`steer`, which returns that task), or ends it at its next step and runs next (`interrupt`).
        With `connection`, the task is accepted by the caller's own transaction, and only if that commits.
        The task belongs to the trace of `traceparent`, or to that of the caller's current OpenTelemetry span.
        """
        statement = tasks.accept(
            agent,
            input,
            session=session,
            user=user,
            idempotency_key=idempotency_key,
            when_busy=when_busy,
            traceparent=traceparent or tracing.current(),
        )
        task_id = self._link.run(statement) if connection is None else run_on(connection, statement)
        return Task(self._link, task_id, connection)

    def task(self, task_id: str) -> Task:
        return Task(self._link, TaskId(task_id))

    def session(self, session_id: str) -> Session:
        return Session(self._link, session_id)

    def sessions(
        self,
        *,
        user: str | None = None,
        agent: str | None = None,
        state: str | None = None,
        text: str | None = None,
        limit: int = 100,
    ) -> list[SessionRow]:
        """Last active first; `text` is looked for in titles and in what was said."""
        return self._link.run(sessions.list_sessions(user=user, agent=agent, state=state, words=text, limit=limit))

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

    def approve(self, task_id: str, call_id: str, *, arguments: dict[str, Json] | None = None) -> Task | None:
        """Let a waiting call run, with other arguments if given; the task that goes on, once all is answered."""
        return self._decide(tasks.decide(task_id, call_id, "approved", None, arguments))

    def deny(self, task_id: str, call_id: str, *, reason: str | None = None) -> Task | None:
        """Refuse a waiting call; the model is told the reason."""
        return self._decide(tasks.decide(task_id, call_id, "denied", reason))

    def answer(self, task_id: str, call_id: str, text: str) -> Task | None:
        """Answer what an agent asked; the task that goes on, once nothing is left to answer."""
        return self._decide(tasks.decide(task_id, call_id, "answered", text))

    def cancel(self, task_id: str, *, reason: str | None = None) -> None:
        """End a task: at once when it has not begun, before its next step when it runs. What it did stays recorded."""
        self._link.run(tasks.cancel(task_id, reason))

    def pause(self, session_id: str) -> None:
        """The session accepts inputs and runs none; a running task stops at its next step."""
        self._link.run(sessions.set_mode(session_id, "paused"))

    def resume(self, session_id: str) -> None:
        self._link.run(sessions.set_mode(session_id, "open"))

    def close_session(self, session_id: str) -> None:
        """The session accepts nothing more until it is reopened."""
        self._link.run(sessions.set_mode(session_id, "closed"))

    def reopen(self, session_id: str) -> None:
        self._link.run(sessions.set_mode(session_id, "open"))

    def take_over(self, session_id: str, person: str) -> None:
        """A person answers in the agent's place from now on."""
        self._link.run(sessions.set_mode(session_id, "paused", person))

    def say(self, session_id: str, person: str, text: str) -> Task:
        """Words of the person who took over, in the agent's place."""
        return Task(self._link, self._link.run(sessions.speak(session_id, person, text)))

    def give_back(self, session_id: str, *, note: str | None = None) -> None:
        """The session is the agent's again; the note becomes part of its checkpoint."""
        self._link.run(sessions.give_back(session_id, note))

    def effects_after(self, session_id: str, at: int) -> list[EffectRow]:
        """What happened outside after a place in the journal, and no fork or rewind undoes."""
        return self._link.run(sessions.effects_after(session_id, at))

    def fork(
        self, session_id: str, *, at: int | None = None, session: str | None = None, title: str | None = None
    ) -> Session:
        """A new session with this one's past up to a place in the journal; it goes its own way from there."""
        return Session(self._link, self._link.run(sessions.fork(session_id, at=at, new=session, title=title)))

    def rewind(self, session_id: str, *, to: int) -> None:
        """Move a session back to a place in its journal. What is undone stays in the journal."""
        self._link.run(sessions.rewind(session_id, to))

    def delete_session(self, session_id: str) -> None:
        """The session is gone for good, with everything that belongs to it."""
        self._link.run(sessions.delete(session_id))

    def export_session(self, session_id: str) -> Json:
        """Everything of a session as one JSON document, its files and its shared past included."""
        return self._link.play(sessions.export_whole(session_id))

    def import_session(self, document: Json, *, session: str | None = None, user: str | None = None) -> Session:
        """Take in an exported session, idle, under its own id or another."""
        if not isinstance(document, dict):
            raise InvalidInput("this is no exported session")
        for entry in cast(list[Json], document.get("files") or []):
            parts_of(files.imported(entry).path)
        return Session(self._link, self._link.run(sessions.import_session(document, session, user)))

    def dead_letters(self) -> list[DeadLetterRow]:
        """Tasks that will not be tried again until a person says so, newest first."""
        return self._link.run(supervision.list_dead_letters())

    def retry(self, task_id: str, *, input: str | None = None) -> Task:
        """Put a dead letter back. It goes on from its records; with another input, a new task takes its place."""
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

    def schedule(
        self,
        name: str,
        agent: str,
        input: str,
        *,
        cron: str | None = None,
        at: datetime | str | None = None,
        timezone: str = "UTC",
        session: str | None = None,
        user: str | None = None,
        missed: Missed = "skip",
    ) -> ScheduleRow:
        """Give an agent an input by the clock: by a cron expression, or once at a moment. Needs no worker now.

        Each run is a new session unless one is named. What falls into a time without any worker is left out (`skip`),
        or made up by one run at the next start, however many were missed (`once`).
        """
        timetable = read_timetable(cron, at, timezone)
        self._link.run(schedules.add(name, agent, input, timetable, session=session, user=user, missed=missed))
        [row] = self._link.run(schedules.list_schedules(name))
        return row

    def schedules(self) -> list[ScheduleRow]:
        """Those that run next first."""
        return self._link.run(schedules.list_schedules())

    def unschedule(self, name: str) -> None:
        """The schedule runs no more; tasks it has enqueued stay."""
        self._link.run(schedules.remove(name))

    def make_key(self, name: str, *, user: str | None = None, read_only: bool = False) -> str:
        """A new API key. It is shown this once: only its hash is kept."""
        key = keys.new_key()
        self._link.run(keys.add(name, key, user=user, read_only=read_only))
        return key

    def keys(self) -> list[KeyRow]:
        """What is known of the keys that were made, by name."""
        return self._link.run(keys.list_keys())

    def revoke_key(self, name: str) -> None:
        """The key opens nothing more, within seconds; sign-ins with it neither."""
        self._link.run(keys.revoke(name))

    def forget_key(self, name: str) -> None:
        """Free the name of a revoked key. Without any key left, a service on loopback asks for none."""
        self._link.run(keys.forget(name))

    def usage(
        self,
        by: UsageBy = "agent",
        *,
        since: date | None = None,
        user: str | None = None,
        session: str | None = None,
        limit: int = 1000,
    ) -> list[UsageRow]:
        """What models used and cost since a day (else in the last 30), by one of the things that have sums."""
        start = since or (datetime.now(UTC).date() - timedelta(days=30))
        return self._link.run(spending.read_usage(by, since=start, user=user, session=session, limit=limit))

    def set_budget(
        self,
        scope: Scope,
        name: str,
        *,
        usd: Decimal | float | str | None = None,
        tokens: int | None = None,
        per: Period = "total",
    ) -> None:
        """Let a session or a user spend this much per day (UTC) or in all; what waited for it goes on."""
        try:
            money = None if usd is None else Decimal(str(usd))
        except InvalidOperation:
            raise InvalidInput(f"{usd!r} is no amount of money") from None
        self._link.run(spending.set_budget(scope, name, per, cost_usd=money, tokens=tokens))

    def remove_budget(self, scope: Scope, name: str, *, per: Period | None = None) -> None:
        """The default holds again, if there is one; what waited goes on as far as that allows."""
        self._link.run(spending.remove_budget(scope, name, per))

    def budgets(self, scope: Scope | None = None, name: str | None = None) -> list[BudgetRow]:
        """Budgets and what is spent of them; those with an empty name are the defaults of the settings."""
        return self._link.run(spending.list_budgets(scope, name))

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

    def messages(self) -> list[SaidRow]:
        """The conversation as its user sees it, oldest first: each notice stands where it happened."""
        return self._link.run(sessions.read_conversation(self.id))

    def compactions(self) -> list[CompactionRow]:
        """What requests left out, oldest first."""
        return self._link.run(continuity.list_compactions(self.id))

    def events(self, after: int = 0) -> list[EventRow]:
        return self._link.run(sessions.read_journal(self.id, after=after))

    def questions(self) -> list[QuestionRow]:
        return self._link.run(tasks.list_questions(session=self.id))

    def notices(self) -> list[NoticeRow]:
        return self._link.run(continuity.list_notices(self.id))

    def handoff(self) -> HandoffRow | None:
        """The newest handoff, if there is one."""
        return self._link.run(continuity.newest_handoff(self.id))

    def files(self) -> list[FileRow]:
        """What is in its workspace."""
        return self._link.run(files.read_manifest(self.id))

    def search(self, words: str) -> list[StoredMessage]:
        """Original messages that contain the words, newest first, also those a compaction has covered."""
        return self._link.run(continuity.search_messages(self.id, words))
