"""The first screen of a house in use: who needs you comes first."""

from __future__ import annotations

from typing import Any

import psycopg

from agent.client import AgentClient
from tests.browser.conftest import Serve, Shoot
from tests.workers import Place, eventually

DAY = [
    ("nightly", "Nightly report on lighthouses", "ops", range(0, 96, 4), (40,), (64,)),
    ("desk-2", "Which lamp fits a ship from 1912?", "ben", (*range(8, 30), *range(70, 90)), (), (20, 80)),
    ("desk-3", "Translate the keeper's diary", "chi", (*range(30, 50), *range(58, 72)), (44, 45), (60,)),
    ("desk-4", "Plan the spring exhibition", "ana", range(74, 95), (88,), ()),
    ("desk-5", "Check the tide tables for Skagen", "eva", range(4, 16), (), ()),
    ("desk-6", "Answer the museum's letter", "ben", (*range(50, 60), 92, 93), (), ()),
]


def live_a_day(client: AgentClient, db: psycopg.Connection) -> None:
    """Sessions with a past: real tasks, and events spread over the last 24 hours."""
    moment = "now() - interval '24 hours' + make_interval(secs => %s)"
    for session, title, user, cells, restarts, compactions in DAY:
        client.enqueue("support", title, session=session, user=user).result(timeout=30)
        first, last = min(cells) * 900 + 450, max(cells) * 900 + 450
        db.execute(f"UPDATE agent.journal SET at = {moment} WHERE session_id = %s", [first, session])
        for cell in sorted({*cells, *restarts, *compactions}):
            is_mark = cell in restarts or cell in compactions
            kind = "worker.died" if cell in restarts else "context.compacted" if is_mark else "model.responded"
            for _ in range(1 if is_mark else 1 + cell * 7 % 5):
                found = db.execute("SELECT agent.append_event(%s, NULL, %s, '{}')", [session, kind]).fetchone()
                assert found is not None
                db.execute(
                    f"UPDATE agent.journal SET at = {moment} WHERE session_id = %s AND seq = %s",
                    [cell * 900 + 450, session, found[0]],
                )
        db.execute(
            "UPDATE agent.sessions SET context_tokens = %s, restarts = %s, compactions = %s,"
            f" last_active_at = {moment} WHERE session_id = %s",
            [9000 + 63_000 * len(compactions), len(restarts), len(compactions), last, session],
        )


def test_who_needs_you_comes_first(
    page: Any, serve: Serve, shoot: Shoot, client: AgentClient, db: psycopg.Connection, place: Place
) -> None:
    address = serve("tests.browser.staff:support", "tests.agents:gate")
    live_a_day(client, db)
    client.enqueue("gate", "Pass the night gate", session="gate", user="ops")
    eventually(lambda: place.world("ran"))
    waiting = client.enqueue("support", "Please refund order 17", session="acme-17", user="ana")
    assert waiting.settled_status(timeout=30) == "waiting"
    db.execute("UPDATE agent.approvals SET requested_at = now() - interval '2 hours'")
    db.execute(
        "INSERT INTO agent.effects (idempotency_key, session_id, task_id, call_id, tool, arguments, policy, state)"
        " SELECT 'k', session_id, task_id, 'c', 'send_letter', '{}', 'report', 'unknown'"
        " FROM agent.tasks WHERE session_id = 'desk-6'"
    )
    db.execute(
        "SELECT agent.notice_interruption('desk-4', task_id, 'crash', 'x') FROM agent.tasks WHERE session_id = 'desk-4'"
    )
    db.execute("UPDATE agent.notices SET at = now() - interval '4 minutes'")
    db.execute("UPDATE agent.sessions SET mode = 'quarantined' WHERE session_id = 'desk-3'")
    page.goto(address)
    rows = page.locator(".sessions li")
    rows.first.wait_for()
    words = [text.split("\n")[0] for text in page.locator(".sessions .status").all_inner_texts()]
    assert words[:4] == ["waiting for your approval, 2 h", "in doubt", "quarantined", "working"]
    assert page.locator("#s-desk-4 .status").inner_text() == "recovered 4 min ago\n0 steps run again"
    assert page.locator(".counts div", has_text="tasks lost").locator("dd").inner_text() == "0"
    assert page.locator("#s-nightly .strip .restart").count() == 1
    assert page.locator("#s-nightly .strip .compaction").count() == 1
    shoot("first-screen")
    page.emulate_media(color_scheme="dark")
    shoot("first-screen-dark")
    page.keyboard.press("/")
    page.keyboard.type("tide tables")
    page.keyboard.press("Enter")
    page.locator("#s-desk-5").wait_for()
    assert rows.count() == 1, "found by its words"
    page.goto(f"{address}/?show=you")
    assert rows.count() == 3
    page.goto(address)
    client.enqueue("support", "A new one", session="newest")
    page.locator("#s-newest").wait_for()  # the page follows by itself
