"""Whether a text can be trusted to carry a session on: questions made from the source, answered from the text alone.

Pure, and without a model: an answer is right when the fact stands in the text, word for word but for case
and white space.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from store.documents import Checkpoint


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


def questions_about(
    checkpoint: Checkpoint,
    *,
    corrections: Iterable[str] = (),
    doubts: Iterable[str] = (),
    open_calls: Iterable[str] = (),
) -> list[Question]:
    asked = [Question("goal", checkpoint.goal)] if checkpoint.goal else []
    asked += [Question("correction", text) for text in corrections]
    asked += [Question("constraint", text) for text in checkpoint.constraints]
    asked += [Question("decision", made.decision) for made in checkpoint.decisions]
    asked += [Question("effect in doubt", tool) for tool in doubts]
    asked += [Question("pending approval", tool) for tool in open_calls]
    if checkpoint.next_step:
        asked.append(Question("next step", checkpoint.next_step))
    return asked


def grade(text: str, questions: Sequence[Question]) -> Grade:
    if not questions:
        return Grade(1.0, ())
    plain = _plain(text)
    missing = tuple(question for question in questions if _plain(question.fact) not in plain)
    return Grade(1 - len(missing) / len(questions), missing)


def repaired(text: str, missing: Iterable[Question]) -> str:
    """The text with what it left out, taken from the source."""
    lines = [f"- {question.about}: {question.fact}" for question in missing]
    return "\n".join([text, "Kept from the record:", *lines]) if lines else text


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
