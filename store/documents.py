"""The documents a session lives by: the checkpoint of its work, and the handoff one context leaves for the next.

Plain frozen data, with what can be said about it without asking anybody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

LARGEST_CHECKPOINT = 10_000
"""Bytes of a checkpoint, whatever happens."""
LONGEST_ENTRY = 500
MOST_NOTICED = 12

PlanStatus = Literal["pending", "active", "done", "failed"]
HandoffReason = Literal["planned", "crash", "overflow", "hang", "human"]


class Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class PlanStep(Document):
    title: str
    status: PlanStatus = "pending"
    result: str | None = None


class Decision(Document):
    decision: str
    reason: str


class Checkpoint(Document):
    """The factual state of the work."""

    goal: str = ""
    plan: tuple[PlanStep, ...] = ()
    results: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    discoveries: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()

    @property
    def progress(self) -> tuple[int, int]:
        return sum(step.status == "done" for step in self.plan), len(self.plan)

    @property
    def next_step(self) -> str | None:
        return next((step.title for step in self.plan if step.status in ("active", "pending", "failed")), None)

    @property
    def is_empty(self) -> bool:
        return self == Checkpoint()


def with_added(known: tuple[str, ...], text: str) -> tuple[str, ...]:
    """The entries with one more, once."""
    entry = clipped(text)
    return known if not entry or entry in known else (*known, entry)


def with_decision(checkpoint: Checkpoint, decision: str, reason: str) -> Checkpoint:
    made = Decision(decision=clipped(decision), reason=clipped(reason))
    if made in checkpoint.decisions:
        return checkpoint
    return checkpoint.model_copy(update={"decisions": (*checkpoint.decisions, made)})


def with_plan(checkpoint: Checkpoint, goal: str | None, plan: Iterable[PlanStep]) -> Checkpoint:
    steps = tuple(
        step.model_copy(update={"title": clipped(step.title), "result": clipped(step.result) if step.result else None})
        for step in plan
    )
    results = checkpoint.results
    for step in steps:
        if step.status == "done" and step.result:
            results = with_added(results, f"{step.title}: {step.result}")
    return checkpoint.model_copy(
        update={"goal": clipped(goal) if goal else checkpoint.goal, "plan": steps, "results": results}
    )


def shrunk(checkpoint: Checkpoint, limit: int = LARGEST_CHECKPOINT) -> Checkpoint:
    """At most so many bytes: the oldest results go first, then discoveries, then what steps brought; goal,
    constraints and decisions are the last to lose words, and never vanish."""

    def size() -> int:
        return len(checkpoint.model_dump_json().encode())

    while size() > limit and checkpoint.results:
        checkpoint = checkpoint.model_copy(update={"results": checkpoint.results[1:]})
    while size() > limit and checkpoint.discoveries:
        checkpoint = checkpoint.model_copy(update={"discoveries": checkpoint.discoveries[1:]})
    if size() > limit:
        checkpoint = checkpoint.model_copy(
            update={"plan": tuple(step.model_copy(update={"result": None}) for step in checkpoint.plan)}
        )
    while size() > limit and (done := [step for step in checkpoint.plan if step.status == "done"]):
        checkpoint = checkpoint.model_copy(
            update={"plan": tuple(step for step in checkpoint.plan if step is not done[0])}
        )
    while size() > limit and len(checkpoint.plan) > 20:
        checkpoint = checkpoint.model_copy(update={"plan": checkpoint.plan[:-1]})
    longest = LONGEST_ENTRY
    while size() > limit and longest > 20:
        longest = longest * 3 // 4
        checkpoint = Checkpoint(
            goal=clipped(checkpoint.goal, longest),
            plan=tuple(step.model_copy(update={"title": clipped(step.title, longest)}) for step in checkpoint.plan),
            decisions=tuple(
                Decision(decision=clipped(made.decision, longest), reason=clipped(made.reason, longest))
                for made in checkpoint.decisions
            ),
            constraints=tuple(clipped(text, longest) for text in checkpoint.constraints),
            dependencies=tuple(clipped(text, longest) for text in checkpoint.dependencies),
        )
    return checkpoint


RULES = re.compile(
    r"\b(never|always|must|mustn't|do not|don't|only|at most|at least|no more than|under no circumstances)\b",
    re.IGNORECASE,
)
SENTENCE = re.compile(r"[^.!?\n]+[.!?]?")


def stated_rules(text: str) -> list[str]:
    """Sentences in which a user lays down a rule, word for word. A net below the agent's own record, not a parser."""
    found = [sentence.strip() for sentence in SENTENCE.findall(text[:20_000]) if RULES.search(sentence)]
    return [sentence for sentence in found if len(sentence) <= LONGEST_ENTRY][:MOST_NOTICED]


def clipped(text: str, longest: int = LONGEST_ENTRY) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


class Doubt(Document):
    tool: str
    arguments: dict[str, object]
    idempotency_key: str
    policy: str


class Handoff(Document):
    """What one context leaves for the next, for a person and for a model."""

    agent: str
    session: str
    reason: HandoffReason
    working_on: str
    done: int
    planned: int
    critical_context: tuple[str, ...]
    in_doubt: tuple[Doubt, ...]
    next_steps: tuple[str, ...]
    decisions: tuple[Decision, ...]
    constraints: tuple[str, ...]
    dependencies: tuple[str, ...]
    last_completed_step: str | None
    pending_steps: tuple[str, ...]
    waiting_for_a_person: tuple[str, ...]
    pending_inputs: tuple[str, ...]
    files: tuple[str, ...] = ()
    briefing: str | None = None
    """What the agent's model added to the facts, when there was time."""
