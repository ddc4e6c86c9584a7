"""Handoffs: the document one context leaves for the next, written from the record alone, so that it can always be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from store import continuity, exam
from store.database import Database
from store.documents import Checkpoint, Handoff, HandoffReason
from store.errors import NotFound
from store.exam import Examiner
from store.types import HandoffFacts, Json

WRITE = "handoff.write"
IMPROVE = "handoff.improve"
FEW = 5
LONGEST_BRIEFING = 2000

Brief = Callable[[str], Awaitable[str]]
"""Tells, from a handoff and the end of the conversation, what the next context should know beside the facts."""


async def write_handoff(
    database: Database,
    *,
    session: str,
    task: str | None,
    reason: HandoffReason,
    occasion: str,
    examiner: Examiner | None = None,
) -> float:
    """Safe to repeat: an occasion has one handoff, and a second writing of it changes nothing. Returns its score."""
    facts = await database.run(continuity.read_handoff_facts(session, task))
    if facts is None:
        raise NotFound(f"there is no session {session!r}")
    handoff = build(facts, reason)
    score, handoff = await examined(handoff, facts, examiner)
    statement = continuity.write_handoff(
        handoff, task=facts.task_id, occasion=occasion, markdown=to_markdown(handoff), exam_score=score
    )
    await database.run(statement)
    return score


def build(facts: HandoffFacts, reason: HandoffReason) -> Handoff:
    checkpoint = facts.checkpoint or Checkpoint()
    done, planned = checkpoint.progress
    pending = tuple(step.title for step in checkpoint.plan if step.status != "done")
    failures = [
        f"{tool['tool']} did not succeed ({tool['outcome']}): retry it" for tool in facts.tools if _failed(tool)
    ]
    finished = [step.title for step in checkpoint.plan if step.status == "done"]
    last_tool = f"{facts.tools[-1]['tool']} ({facts.tools[-1]['outcome']})" if facts.tools else None
    return Handoff(
        agent=facts.agent,
        session=facts.session_id,
        reason=reason,
        working_on=checkpoint.goal or facts.input or facts.title or "nothing yet",
        done=done,
        planned=planned,
        critical_context=(
            *(f"Correction by the user: {text}" for text in facts.corrections),
            *checkpoint.discoveries[-FEW:],
            *(f"Result: {text}" for text in checkpoint.results[-FEW:]),
            f"{facts.steps} steps of the current task are recorded and will not run again",
            *failures[-FEW:],
        ),
        in_doubt=facts.doubts,
        next_steps=(
            *(f"Settle {doubt.tool}: nobody recorded how it ended (policy {doubt.policy})" for doubt in facts.doubts),
            *(pending[:FEW] or ("Finish the current task",)),
            *(f"Then: {text}" for text in facts.pending[:FEW]),
        ),
        decisions=checkpoint.decisions,
        constraints=checkpoint.constraints,
        dependencies=checkpoint.dependencies,
        last_completed_step=finished[-1] if finished else last_tool,
        pending_steps=pending,
        waiting_for_a_person=tuple(f"{asked['tool']}: {asked['reason']}" for asked in facts.questions),
        pending_inputs=facts.pending,
        files=facts.files,
    )


async def examined(handoff: Handoff, facts: HandoffFacts, examiner: Examiner | None) -> tuple[float, Handoff]:
    """Ask the document what the record knows; what it does not answer is put into its critical context."""
    questions = exam.questions_about(
        facts.checkpoint or Checkpoint(),
        corrections=facts.corrections,
        doubts=(doubt.tool for doubt in facts.doubts),
        open_calls=(str(asked["tool"]) for asked in facts.questions),
        promises=facts.pending,
        files=facts.files,
    )
    graded = await exam.examine(to_markdown(handoff), questions, examiner)
    put_back = tuple(f"{question.about.capitalize()}: {question.fact}" for question in graded.missing)
    return graded.score, handoff.model_copy(update={"critical_context": (*handoff.critical_context, *put_back)})


async def improve_handoff(database: Database, *, occasion: str, brief: Brief, seconds: float) -> bool:
    """Safe to repeat: only the briefing is written anew; the facts stay as they are. Says whether there was time."""
    written = await database.run(continuity.read_occasion(occasion))
    if written is None:
        return False
    try:
        async with asyncio.timeout(seconds):
            told = (await brief(written.markdown)).strip()
    except Exception:
        return False
    if not told:
        return False
    handoff = Handoff.model_validate(written.document).model_copy(update={"briefing": told[:LONGEST_BRIEFING]})
    await database.run(continuity.improve_handoff(handoff, occasion=occasion, markdown=to_markdown(handoff)))
    return True


def to_markdown(handoff: Handoff) -> str:
    progress = (
        f"{handoff.done} of {handoff.planned} steps of the plan are done" if handoff.planned else "no plan was kept"
    )
    pending = [f"pending: {title}" for title in handoff.pending_steps]
    sections = [
        f"# Handoff of session {handoff.session}",
        f"Agent {handoff.agent}, reason: {handoff.reason}.",
        "## Current state",
        f"Working on: {handoff.working_on}\n\nProgress: {progress}.",
        f"## In the agent's own words\n\n{handoff.briefing}" if handoff.briefing else "",
        _listed("Critical context", handoff.critical_context),
        _listed(
            "In doubt",
            [f"{doubt.tool}({_brief(doubt.arguments)}), policy {doubt.policy}" for doubt in handoff.in_doubt],
        ),
        _listed("Immediate next steps", handoff.next_steps, numbered=True),
        _listed("Decisions made", [f"{made.decision}, because {made.reason}" for made in handoff.decisions]),
        _listed("Constraints, in the user's own words", [f"“{text}”" for text in handoff.constraints]),
        _listed("External dependencies", handoff.dependencies),
        _listed("Waiting for a person", handoff.waiting_for_a_person),
        _listed("Steps", [f"last completed: {handoff.last_completed_step or 'none'}", *pending]),
        _listed("Files changed", handoff.files),
        _listed("Inputs that wait", handoff.pending_inputs),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _listed(title: str, lines: Iterable[str], *, numbered: bool = False) -> str:
    items = list(lines)
    if not items:
        return ""
    marks = [f"{number}." for number in range(1, len(items) + 1)] if numbered else ["-"] * len(items)
    return f"## {title}\n\n" + "\n".join(f"{mark} {item}" for mark, item in zip(marks, items, strict=True))


def _failed(tool: Json) -> bool:
    return tool["outcome"] in ("failed", "raised", "retry")


def _brief(arguments: Json) -> str:
    return ", ".join(f"{name}={str(value)[:60]}" for name, value in arguments.items())
