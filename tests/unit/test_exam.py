"""The exam, with and without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from store.documents import Checkpoint, Decision
from store.exam import Examiner, Grade, examine, questions_about, repaired

KNOWN = Checkpoint(
    goal="build the harbour",
    constraints=("never dredge on Sundays",),
    decisions=(Decision(decision="use stone", reason="wood rots"),),
)


def sit(text: str, examiner: Examiner | None = None) -> Grade:
    return asyncio.run(examine(text, questions_about(KNOWN), examiner))


def test_facts_are_found_whatever_their_case_and_white_space() -> None:
    assert sit("We BUILD the\nharbour, never dredge on  sundays, and use stone.").score == 1.0


def test_what_is_missing_is_put_back_from_the_source() -> None:
    graded = sit("We build the harbour and use stone.")
    assert [question.about for question in graded.missing] == ["constraint"]
    assert "never dredge on Sundays" in repaired("…", graded.missing)


def test_an_examiner_finds_what_stands_there_but_cannot_be_understood() -> None:
    async def reads(text: str, questions: Sequence[str]) -> Sequence[str]:
        assert questions == ["What is every constraint?", "What is every decision?", "What is every goal?"]
        return ["not said", "they use stone", "build the harbour"]

    graded = sit("build the harbour use stone never dredge on Sundays", reads)
    assert [question.about for question in graded.missing] == ["constraint"]


def test_an_examiner_that_fails_leaves_the_check_of_facts() -> None:
    async def fails(text: str, questions: Sequence[str]) -> Sequence[str]:
        raise RuntimeError("no answers today")

    assert sit("build the harbour, use stone, never dredge on Sundays", fails).score == 1.0
