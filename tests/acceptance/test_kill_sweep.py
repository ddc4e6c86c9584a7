"""A worker is killed at every point of a task, and its successor again during the recovery."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter

import psycopg
import pytest

from agent.client import AgentClient
from tests.workers import Nursery, Place, eventually

ANSWER = "saw A, B, D; kept C; paid 100"
SHARDS = 2
SHORTEST_RECOVERY = 24
"""Points that even a task killed right before its commit passes again: opening, ten records, commit, outcome."""
RECOVERY_AFTER_COMMIT = 4
"""Opening and outcome: what is committed is neither read back nor committed again."""


def test_an_undisturbed_run_passes_every_point_once(client: AgentClient, place: Place, nursery: Nursery) -> None:
    names = points_of_a_run(client, place, nursery)
    steps = [name for name in names if name == "after record_operation_result"]
    assert len(steps) == 10
    assert "before commit_task" in names
    assert "after update_workflow_outcome" in names


@pytest.mark.parametrize("shard", range(SHARDS))
def test_killed_at_every_point_and_again_in_recovery_it_ends_done(
    client: AgentClient, place: Place, nursery: Nursery, shard: int
) -> None:
    names = points_of_a_run(client, place, nursery)
    count, committed = len(names), 1 + names.index("after commit_task")
    assert count > 40
    for first in range(1 + shard, count + 1, SHARDS):
        recovery = max(SHORTEST_RECOVERY, count - first) if first < committed else RECOVERY_AFTER_COMMIT
        second = 1 + (first * 7) % recovery
        died = outlive(client, place, nursery, [first, second])
        assert died == (1 if first == count else 2), f"deaths planned at {first} and {second}, {died} happened"


def points_of_a_run(client: AgentClient, place: Place, nursery: Nursery) -> list[str]:
    task = enqueue_doomed(client, place, [])
    pid = nursery.bear(environment(place))
    assert client.task(task).result(timeout=60) == ANSWER
    names = eventually(lambda: names_when_over(place, task))
    nursery_kill(nursery, pid)
    return names


def names_when_over(place: Place, task: str) -> list[str]:
    names = [line["name"] for line in place.world("points") if line["task"] == task]
    return names if names and names[-1] == "after update_workflow_outcome" else []


def outlive(client: AgentClient, place: Place, nursery: Nursery, deaths: list[int]) -> int:
    """Let a task die as planned and finish all the same; how often it really died."""
    task = enqueue_doomed(client, place, deaths)
    told = f"deaths at {deaths}"
    recorded: Counter[str] = Counter()
    for _ in deaths:
        pid = nursery.bear(environment(place))
        if not dies_or_finishes(place, nursery, pid, task):
            break
        check_not_repeated(place, task, recorded, told)
        recorded = executions_on_record(client, place, task)
    else:
        pid = nursery.bear(environment(place))
    assert client.task(task).result(timeout=60) == ANSWER, told
    row = client.task(task).read()
    assert row.steps == 10, told
    check_not_repeated(place, task, recorded, told)
    check_effects(place, task, told)
    nursery_kill(nursery, pid)
    return sum(line["task"] == task for line in place.world("deaths"))


def dies_or_finishes(place: Place, nursery: Nursery, pid: int, task: str) -> bool:
    """True when the worker died as planned; a second death may lie beyond the end of a short recovery."""

    def over() -> str:
        if any(line["pid"] == pid for line in place.world("deaths")):
            return "died"
        with psycopg.connect(place.url) as connection:
            row = connection.execute(
                "SELECT status FROM dbos.workflow_status WHERE workflow_uuid = %s", [task]
            ).fetchone()
        return "finished" if row == ("SUCCESS",) else ""

    if eventually(over) == "finished" and not any(line["pid"] == pid for line in place.world("deaths")):
        return False
    assert nursery.wait_death(pid) == -9
    return True


def executions_on_record(client: AgentClient, place: Place, task: str) -> Counter[str]:
    """How often that ran of which a record exists now."""
    kept: set[str] = set()
    results = 0
    for step in client.task(task).steps():
        if step.kind == "model":
            kept.add(f"model {results}")
        else:
            [argument] = step.input.values()
            kept.add(f"{step.name.removeprefix('tool.')} {argument}")
            results += 1
    ran = Counter(line["what"] for line in place.world("ran") if line["task"] == task)
    return Counter({what: ran[what] for what in kept if what in ran})


def check_not_repeated(place: Place, task: str, recorded: Counter[str], told: str) -> None:
    ran = Counter(line["what"] for line in place.world("ran") if line["task"] == task)
    assert {what: ran[what] for what in recorded} == dict(recorded), f"a recorded step ran again: {told}"


def check_effects(place: Place, task: str, told: str) -> None:
    keys = {line["key"] for line in place.world("ran") if line["task"] == task and "key" in line}
    happened = Counter(line["effect"] for line in place.world("world") if line["key"] in keys)
    assert happened["keep"] == 1, told
    assert happened["pay"] == 1, told
    assert happened["mail"] <= 1, told
    ran_mail = sum(line["what"] == "mail ana" for line in place.world("ran") if line["task"] == task)
    assert ran_mail <= 1, f"an unmarked tool ran twice: {told}"


def enqueue_doomed(client: AgentClient, place: Place, deaths: list[int]) -> str:
    """Accept a task whose deaths are planned before any worker can see it."""
    with psycopg.connect(place.url) as connection:
        task = client.enqueue("sweep", "go", connection=connection)
        (place.folder / "points.json").write_text(json.dumps({"task": task.id, "at": deaths}))
    return task.id


@pytest.fixture(autouse=True)
def sweep_is_known(db: psycopg.Connection) -> None:
    db.execute("INSERT INTO agent.agents (name) VALUES ('sweep')")


def environment(place: Place) -> dict[str, str]:
    return {**place.environment(["tests.agents:sweep"], isolate_after=99), "TEST_DEATHS": "1"}


def nursery_kill(nursery: Nursery, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    nursery.wait_death(pid)
