"""The checkpoint: what is kept, once, within its size; and the rules a user lays down."""

from __future__ import annotations

from store.documents import (
    LARGEST_CHECKPOINT,
    Checkpoint,
    Decision,
    PlanStep,
    shrunk,
    stated_rules,
    with_added,
    with_decision,
    with_plan,
)


def test_entries_are_kept_once() -> None:
    assert with_added(("a",), " a ") == ("a",)
    decided = with_decision(Checkpoint(), "use stone", "wood rots")
    assert with_decision(decided, "use stone", "wood rots") == decided


def test_a_plan_brings_its_results_along() -> None:
    planned = with_plan(
        Checkpoint(goal="old"), None, [PlanStep(title="a", status="done", result="r"), PlanStep(title="b")]
    )
    assert (planned.goal, planned.results, planned.progress, planned.next_step) == ("old", ("a: r",), (1, 2), "b")


def test_whatever_happens_it_stays_small_and_keeps_goal_constraints_and_decisions() -> None:
    huge = Checkpoint(
        goal="the goal " * 50,
        plan=tuple(PlanStep(title=f"step {n} " * 20, status="done", result="r" * 400) for n in range(100)),
        results=tuple(f"result {n} " * 40 for n in range(200)),
        decisions=tuple(Decision(decision=f"decision {n} " * 30, reason="because " * 40) for n in range(30)),
        discoveries=tuple(f"fact {n} " * 40 for n in range(100)),
        constraints=tuple(f"constraint {n} " * 30 for n in range(30)),
    )
    small = shrunk(huge)
    assert len(small.model_dump_json().encode()) <= LARGEST_CHECKPOINT
    assert small.goal.startswith("the goal")
    assert len(small.constraints) == 30
    assert len(small.decisions) == 30
    assert small.results == ()


def test_the_oldest_results_go_first() -> None:
    full = Checkpoint(goal="g", results=tuple(f"{n}" + "x" * 300 for n in range(60)))
    small = shrunk(full)
    assert small.results == full.results[-len(small.results) :]
    assert 20 < len(small.results) < 60


def test_rules_are_found_word_for_word_and_small_talk_is_not() -> None:
    text = "Hello there! You must never email customers on weekends. Thanks.\nUse at most 3 sources, please"
    assert stated_rules(text) == ["You must never email customers on weekends.", "Use at most 3 sources, please"]
    assert stated_rules("What is the weather like?") == []
