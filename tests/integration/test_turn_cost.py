"""A long session costs per turn what a short one does, in bytes and in statements. Counted, not timed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import mean

import psycopg

from agent.client import AgentClient
from tests.workers import Place, Worker

TURNS = 500

BYTES = """
WITH sizes AS (
    SELECT task_id, pg_column_size(t.*) AS size FROM agent.tasks t
    UNION ALL SELECT task_id, pg_column_size(m.*) FROM agent.messages m
    UNION ALL SELECT task_id, pg_column_size(j.*) FROM agent.journal j
    UNION ALL SELECT workflow_uuid, pg_column_size(w.*) FROM dbos.workflow_status w
    UNION ALL SELECT workflow_uuid, pg_column_size(i.*) FROM dbos.workflow_input i
    UNION ALL SELECT workflow_uuid, pg_column_size(o.*) FROM dbos.workflow_output o
    UNION ALL SELECT workflow_uuid, pg_column_size(s.*) FROM dbos.operation_outputs s)
SELECT sum(size)::float FROM sizes JOIN agent.tasks USING (task_id) GROUP BY seq ORDER BY seq
"""


def test_turn_five_hundred_costs_what_turn_ten_does(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Callable[..., Worker]
) -> None:
    hire("tests.counting:echo")
    with psycopg.connect(place.url) as connection:
        tasks = [
            client.enqueue("echo", f"input {turn:04}", session="long", connection=connection) for turn in range(TURNS)
        ]
    assert tasks[-1].result(timeout=300) == f"turn {TURNS}: input {TURNS - 1:04}"

    stored = [row[0] for row in db.execute(BYTES).fetchall()]
    assert len(stored) == TURNS
    early, late = mean(stored[5:15]), mean(stored[-10:])
    assert abs(late - early) / early < 0.10, f"{early:.0f} bytes at turn 10, {late:.0f} at turn {TURNS}"

    totals = [line["statements"] for line in place.world("turns")]
    per_turn = [after - before for before, after in pairwise(totals)]
    assert len(per_turn) == TURNS - 1
    early, late = mean(per_turn[5:15]), mean(per_turn[-10:])
    print(f"\n{early:.1f} statements at turn 10, {late:.1f} at turn {TURNS}; {mean(stored):.0f} bytes a turn")
    assert abs(late - early) / early < 0.10, f"{early:.1f} statements at turn 10, {late:.1f} at turn {TURNS}"
