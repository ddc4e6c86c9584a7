"""What calls answer with: the rows people know from SQL, under the names of the nouns."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema

from store.types import (
    AgentCard,
    AlertRow,
    BreakerRow,
    BudgetRow,
    DeadLetterRow,
    Decision,
    EffectRow,
    FileRow,
    HandoffRow,
    NoticeRow,
    QuestionRow,
    SaidRow,
    SessionRow,
    StepRow,
    TaskId,
    TaskRow,
    TaskStatus,
    UsageRow,
    WorkerRow,
)


def _example(**example: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example]})


class Session(SessionRow):
    """One continuous line of work between an agent and a user."""

    model_config = _example(
        session_id="acme-17",
        agent="support",
        user_id="ana",
        title="Refund order 17",
        state="idle",
        parent_session_id=None,
        open_tasks=0,
        dead_tasks=0,
        messages=4,
        context_tokens=1830,
        context_window=200000,
        restarts=1,
        compactions=0,
        created_at="2026-11-18T09:00:00Z",
        last_active_at="2026-11-18T09:02:11Z",
        coherence=None,
        coherence_note=None,
        tokens=5210,
        cost_usd=0.0173,
        is_over_budget=False,
        budget_until=None,
    )


class Task(TaskRow):
    """One input to a session, executed as one DBOS workflow of the same id."""


class Step(StepRow):
    """One recorded step of a task."""


class ChatMessage(SaidRow):
    """One message of the conversation, as Pydantic AI stores it; or, with a `notice_id`, a notice."""


class Notice(NoticeRow):
    """What the user was told about an interruption."""


class Handoff(HandoffRow):
    """The document one context leaves for the next."""


class Question(QuestionRow):
    """A call that waits for a person."""


class Effect(EffectRow):
    """Something that happened outside, and that neither a fork nor a rewind undoes."""


class DeadLetter(DeadLetterRow):
    """A task that will not be tried again until a person says so."""


class Worker(WorkerRow):
    """A process that executes tasks."""


class Alert(AlertRow):
    """Something a person should know."""


class Breaker(BreakerRow):
    """Something that has crashed too often and waits."""


class Usage(UsageRow):
    """Sums of what was used and cost."""


class Budget(BudgetRow):
    """How much may be spent, and how much is."""


class AgentInfo(AgentCard):
    """An agent that can be given inputs."""


class File(FileRow):
    """A file of a session's workspace."""

    sha256: Annotated[bytes, PlainSerializer(bytes.hex, return_type=str), WithJsonSchema({"type": "string"})]


class Accepted(BaseModel):
    """The task is durable and will run."""

    model_config = _example(task_id="0d8c2f3e-6f0a-4f0e-9a55-2a7f1a3c9b10", session_id="acme-17", status="queued")

    task_id: TaskId
    session_id: str
    status: TaskStatus


class Decided(BaseModel):
    """What was decided about a call."""

    task_id: str
    call_id: str
    decision: Decision
    next_task_id: str | None = Field(description="The task that goes on, once nothing is left to answer.")


class Ready(BaseModel):
    status: str
    detail: str | None = None
