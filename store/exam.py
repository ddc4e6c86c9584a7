"""Whether a text can be trusted to carry a session on: questions made from the source, answered from the text alone.

Without a model an answer is right when the fact stands in the text, word for word but for case and white space.
With an examiner, the facts that stand there must also be found by one who reads nothing but the text.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from store.documents import Checkpoint

ENOUGH = 0.6
"""Of a fact's words, the share an examiner's answer must hold."""


@dataclass(frozen=True)
class Question:
    about: str
    fact: str


@dataclass(frozen=True)
class Grade:
    score: float
    missing: tuple[Question, ...]

    @property
    def note(self) -> str | None:
        if not self.missing:
            return None
        return "missing and put back: " + ", ".join(sorted({question.about for question in self.missing}))


Examiner = Callable[[str, Sequence[str]], Awaitable[Sequence[str]]]
"""Answers questions, one each, from a text and nothing else."""


def questions_about(
    checkpoint: Checkpoint,
    *,
    corrections: Iterable[str] = (),
    doubts: Iterable[str] = (),
    open_calls: Iterable[str] = (),
    promises: Iterable[str] = (),
    files: Iterable[str] = (),
) -> list[Question]:
    asked = [Question("goal", checkpoint.goal)] if checkpoint.goal else []
    asked += [Question("correction", text) for text in corrections]
    asked += [Question("constraint", text) for text in checkpoint.constraints]
    asked += [Question("decision", made.decision) for made in checkpoint.decisions]
    asked += [Question("effect in doubt", tool) for tool in doubts]
    asked += [Question("pending approval", tool) for tool in open_calls]
    asked += [Question("open promise", text) for text in promises]
    asked += [Question("file changed", path) for path in files]
    if checkpoint.next_step:
        asked.append(Question("next step", checkpoint.next_step))
    return asked


def grade(text: str, questions: Sequence[Question]) -> Grade:
    plain = _plain(text)
    return _graded(questions, [question for question in questions if _plain(question.fact) not in plain])


async def examine(text: str, questions: Sequence[Question], examiner: Examiner | None) -> Grade:
    """The stricter of the two: what code does not find, and what the examiner cannot answer, is missing."""
    found = grade(text, questions)
    if examiner is None or not questions:
        return found
    try:
        told = " ".join(await examiner(text, sorted({f"What is every {question.about}?" for question in questions})))
    except Exception:
        return found
    unanswered = [question for question in questions if not _is_told(question.fact, told)]
    return _graded(questions, [q for q in questions if q in found.missing or q in unanswered])


def repaired(text: str, missing: Iterable[Question]) -> str:
    """The text with what it left out, taken from the source."""
    lines = [f"- {question.about}: {question.fact}" for question in missing]
    return "\n".join([text, "Kept from the record:", *lines]) if lines else text


def _graded(questions: Sequence[Question], missing: Sequence[Question]) -> Grade:
    return Grade(1 - len(missing) / len(questions) if questions else 1.0, tuple(missing))


def _is_told(fact: str, answer: str) -> bool:
    words = set(re.findall(r"\w+", fact.casefold()))
    return len(words & set(re.findall(r"\w+", answer.casefold()))) >= ENOUGH * len(words)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
