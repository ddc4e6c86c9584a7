"""The nouns shared by every layer, as plain frozen data."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType

from pydantic import BaseModel, ConfigDict, PlainSerializer

from store.documents import Checkpoint, Doubt, HandoffReason

TaskId = NewType("TaskId", str)
SessionId = NewType("SessionId", str)
WorkerId = NewType("WorkerId", str)
OwnerToken = NewType("OwnerToken", str)
"""What DBOS gives to the one execution of a workflow that may record."""

TaskStatus = Literal["queued", "running", "waiting", "done", "failed", "cancelled", "dead"]
TaskOutcome = Literal["waiting", "done", "failed", "cancelled", "dead"]
SessionState = Literal["idle", "running", "waiting", "paused", "quarantined", "closed"]
InDoubtPolicy = Literal["retry", "verify", "ask", "report"]
Decision = Literal["approved", "denied", "answered", "expired"]
WhenBusy = Literal["queue", "steer", "interrupt"]
Wish = Literal["pause", "cancel", "interrupt", "budget"]
"""What a running task is asked to do before its next step."""
Missed = Literal["skip", "once"]
"""What becomes of a schedule's occurrences in a time without any worker: none of them runs, or one for all."""
Scope = Literal["session", "user"]
"""What has a budget."""
Period = Literal["day", "total"]
Purpose = Literal["answer", "summary", "exam", "briefing"]
"""What a model was asked for: to answer, to sum up what no longer fits, to be examined, to brief its successor."""
UsageBy = Literal["task", "session", "user", "agent", "model", "purpose", "day"]
WorkerState = Literal["alive", "draining", "stopped", "dead"]

Money = Annotated[Decimal, PlainSerializer(float, return_type=float, when_used="json")]
"""US dollars. Exact in Postgres; a number in JSON, for people and programs that read it."""

Json = Any
"""A JSON value. Its depth is not worth a recursive type here."""


class Row(BaseModel):
    """One row as people read it: extra columns of a newer schema are not an error."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class PersonDecision(Row):
    call_id: str
    decision: Decision
    note: str | None
    arguments: dict[str, Json]
    idempotency_key: str
    kind: Literal["approval", "question"] = "approval"
    edited: dict[str, Json] | None = None
    tool: str | None = None
    asked_by: TaskId | None = None
    honoured_as: str | None = None
    """The call that uses it, when that is not the one it was made for."""


class Steer(Row):
    """Words for a running task, and the message of its run they stand with once they are delivered."""

    input: str
    place: int | None


class CompactedThrough(Row):
    """What the newest compaction left of the messages it covers."""

    through: int
    summary: str


class OpenedTask(Row):
    """What an execution of a task needs to know; the same at every opening."""

    task_id: TaskId
    session_id: SessionId
    agent: str
    user_id: str | None
    kind: Literal["input", "continuation", "replacement", "person"]
    continues: TaskId | None
    input: str
    history_through: int
    outcome: TaskOutcome | None
    error: str | None
    decisions: tuple[PersonDecision, ...]
    compaction: CompactedThrough | None = None
    is_recovering: bool = False
    control: Wish | None = None
    steers: tuple[Steer, ...] = ()
    owed: tuple[PersonDecision, ...] = ()
    """Decisions made for tasks that were replaced before they used them."""
    waited_seconds: float | None = None
    """From its acceptance to its first opening, at that opening."""


class Question(Row):
    """A call that waits for a person."""

    call_id: str
    tool: str
    arguments: dict[str, Json]
    reason: str
    idempotency_key: str
    kind: Literal["approval", "question"] = "approval"
    expires_seconds: float | None = None


class StoredMessage(Row):
    position: int
    task_id: TaskId
    continues: TaskId | None
    is_waiting: bool
    message: dict[str, Json]


class SaidRow(Row):
    """One entry of a conversation as its user sees it: a message, or a notice of what interrupted it."""

    position: int | None
    task_id: TaskId | None
    notice_id: int | None
    message: dict[str, Json]
    at: datetime
    seq: int | None = None
    """Of a message: the place in the journal at which it became part of the conversation."""


class TaskRow(Row):
    task_id: TaskId
    session_id: SessionId
    agent: str
    user_id: str | None
    seq: int | None
    kind: str
    continues: TaskId | None
    input: str
    status: TaskStatus
    crashes: int
    worker_id: str | None
    error: str | None
    output: Json
    steps: int
    accepted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    runs_after: datetime | None = None
    """When a task that waits will run, if that is known."""
    hangs: int = 0
    is_isolated: bool = False
    evidence: Json = None
    tokens: int = 0
    cost_usd: Money | None = None
    """Empty while no price is known of anything that was used."""


class SessionRow(Row):
    session_id: SessionId
    agent: str
    user_id: str | None
    title: str | None
    state: SessionState
    parent_session_id: str | None
    open_tasks: int
    dead_tasks: int
    messages: int
    context_tokens: int
    context_window: int | None
    restarts: int
    compactions: int
    created_at: datetime
    last_active_at: datetime
    coherence: float | None = None
    coherence_note: str | None = None
    tokens: int = 0
    cost_usd: Money | None = None
    is_over_budget: bool = False
    """It waits for a budget, its own or its user's."""
    budget_until: datetime | None = None
    """When it goes on by itself, if the budget is one per day."""


class Spent(Row):
    """What one request to a model used, and cost at the prices of that moment."""

    purpose: Purpose
    model: str | None
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: str | None = None


class UsageRow(Row):
    """Sums of what was used. Cached tokens are part of the input; requests without a price are not in the cost."""

    name: str | None
    requests: int
    unpriced_requests: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: Money | None


class Limit(Row):
    """How much may be spent, in money, in tokens, or whichever comes first."""

    period: Period
    cost_usd: Decimal | None = None
    tokens: int | None = None


class BudgetRow(Row):
    """A budget and what is spent of it; with an empty name, that of all which have none of their own."""

    scope: Scope
    name: str
    period: Period
    cost_usd: Money | None
    tokens: int | None
    spent_usd: Money | None
    spent_tokens: int | None
    is_used_up: bool


class Gauges(Row):
    """What the database says of itself now."""

    tasks: dict[str, int]
    dead: int
    in_doubt: int
    workers: dict[str, int]
    breakers: dict[str, int]
    alerts: int
    over_budget: int


class EffectRow(Row):
    """Something that happened outside, at a place in the journal."""

    seq: int
    tool: str
    arguments: Json
    idempotency_key: str
    state: str | None
    at: datetime


class StepRow(Row):
    task_id: TaskId
    session_id: SessionId
    step: int
    name: str
    kind: str
    input: Json
    output: Json
    error: str | None
    outcome: str | None
    started_at: datetime | None
    finished_at: datetime | None


class StepRecord(Row):
    """A step exactly as it was recorded."""

    step: int
    name: str
    output: str | None
    error: str | None
    serialization: str | None


class EventRow(Row):
    session_id: SessionId
    seq: int
    task_id: str | None
    kind: str
    data: dict[str, Json]
    at: datetime


class WorkerRow(Row):
    worker_id: WorkerId
    host: str
    pid: int
    process: str
    version: str
    state: WorkerState
    beat_seconds: float
    started_at: datetime
    beat_at: datetime
    silent_seconds: float
    role: Literal["worker", "isolated"] = "worker"
    trial: str | None = None
    ended: str | None = None


class QuestionRow(Row):
    task_id: TaskId
    call_id: str
    session_id: SessionId
    tool: str
    arguments: dict[str, Json]
    reason: str | None
    requested_at: datetime
    kind: Literal["approval", "question"] = "approval"
    expires_at: datetime | None = None


class DoubtRow(Row):
    session_id: SessionId
    task_id: TaskId
    tool: str
    arguments: Json
    idempotency_key: str
    started_at: datetime
    policy: InDoubtPolicy


class NoticeRow(Row):
    notice_id: int
    session_id: SessionId
    task_id: str | None
    kind: str
    body: str
    times: int
    at: datetime
    acknowledged_at: datetime | None
    correction: str | None
    delivered_at: datetime | None = None
    delivery_error: str | None = None


class HandoffRow(Row):
    handoff_id: int
    session_id: SessionId
    reason: HandoffReason
    document: dict[str, Json]
    markdown: str
    exam_score: float
    at: datetime


class CompactionRow(Row):
    """What a request left out: messages behind a summary, or only the results of old calls."""

    task_id: TaskId
    after: int
    through: int
    summary: str | None
    strategy: str
    tokens_before: int
    tokens_after: int
    exam_score: float | None
    note: str | None
    at: datetime


class Restored(Row):
    """What a session's next request is told beside its recent conversation."""

    checkpoint: Checkpoint | None
    corrections: tuple[str, ...]
    interruption: str | None
    pending: tuple[str, ...]
    memory: tuple[str, ...] = ()
    """What is remembered about the session's user beyond this session."""
    worked: tuple[dict[str, Json], ...] = ()
    wanted: Wish | None = None
    steers: tuple[Steer, ...] = ()
    handoff: str | None = None


class HandoffFacts(Row):
    """Everything a handoff is written from."""

    session_id: SessionId
    agent: str
    task_id: str | None
    input: str | None
    title: str | None
    checkpoint: Checkpoint | None
    corrections: tuple[str, ...]
    steps: int
    tools: tuple[dict[str, Json], ...]
    doubts: tuple[Doubt, ...]
    questions: tuple[dict[str, Json], ...]
    pending: tuple[str, ...]
    files: tuple[str, ...] = ()


class FileRow(Row):
    """A file as it should be."""

    path: str
    sha256: bytes
    size: int


class Adoption(Row):
    task: TaskId
    session: SessionId
    worker: str


class AgentCard(Row):
    """An agent as it is known to those who enqueue for it."""

    name: str
    description: str | None
    model: str | None
    tools: tuple[str, ...]
    context_window: int | None = None


class AlertRow(Row):
    """Something a person should know."""

    alert_id: int
    key: str
    what: str
    did: str
    advice: str
    times: int
    since: datetime
    last_at: datetime
    resolved_at: datetime | None
    delivered_at: datetime | None
    delivery_error: str | None


class BreakerRow(Row):
    scope: str
    state: Literal["open", "half-open"]
    reason: str
    trial: str | None
    openings: int
    opened_at: datetime
    until: datetime


class DeadLetterRow(Row):
    task_id: TaskId
    session_id: SessionId
    agent: str
    input: str
    reason: str
    crashes: int
    at: datetime
    hangs: int
    steps: int
    evidence: Json


class KeyRow(Row):
    """A key as people see it: never the key."""

    name: str
    user_id: str | None
    is_read_only: bool
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class KeyHolder(Row):
    """What a key opens."""

    name: str
    hash: bytes
    user_id: str | None
    is_read_only: bool


class KeyCount(Row):
    made: int
    living: int


class ScheduleRow(Row):
    """An input that comes by the clock. `problem` is what kept it from running, while that lasts."""

    name: str
    agent: str
    session_id: SessionId | None
    user_id: str | None
    input: str
    cron: str | None
    at: datetime | None
    timezone: str
    missed: Missed
    next_at: datetime | None
    last_at: datetime | None
    last_task_id: TaskId | None
    last_status: TaskStatus | None
    problem: str | None


class OverdueSchedule(Row):
    """A schedule with an occurrence in the past that nobody has answered for."""

    name: str
    cron: str | None
    at: datetime | None
    timezone: str
    missed: Missed
    next_at: datetime
    watched_until: datetime | None
    now: datetime
