"""A notice reaches the outside: signed, tried again until it is received, and given up loudly."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from agent.client import AgentClient
from store.types import NoticeRow
from tests.reception import Receiver
from tests.workers import Place, Worker, eventually

Hire = Callable[..., Worker]


def told_of(client: AgentClient) -> NoticeRow:
    [notice] = eventually(client.session("s-1").notices)
    return notice


def crash(client: AgentClient, place: Place, hire: Hire, settings: dict[str, object], times: int = 1) -> None:
    worker = hire("tests.agents:gate", **settings)
    client.enqueue("gate", "wait", session="s-1")
    for lives in range(1, times + 1):
        eventually(lambda lives=lives: len(place.world("ran")) == lives)
        worker.kill()
        worker = hire("tests.agents:gate", **settings)


def test_a_notice_is_signed_and_tried_until_it_is_received(
    client: AgentClient, place: Place, hire: Hire, receiver: Receiver, told: dict[str, object]
) -> None:
    receiver.refuse = 2
    crash(client, place, hire, told)
    eventually(lambda: told_of(client).delivered_at)
    assert receiver.tries == 3
    [(identity, message)] = receiver.received
    [notice] = client.session("s-1").notices()
    assert identity == f"notice-{notice.notice_id}-1"
    assert message["type"] == "notice.created"
    assert message["data"]["body"] == notice.body
    assert message["data"]["session_id"] == "s-1"


def test_a_notice_that_nobody_receives_is_given_up_loudly(
    client: AgentClient, place: Place, hire: Hire, receiver: Receiver, told: dict[str, object]
) -> None:
    receiver.refuse = 100
    crash(client, place, hire, told)
    eventually(lambda: told_of(client).delivery_error)
    assert receiver.tries == 4
    [notice] = client.session("s-1").notices()
    assert notice.delivery_error == "the receiver answered 503"
    assert "notice.undelivered" in [event.kind for event in client.session("s-1").events()]
    log = (place.folder / "worker.log").read_text()
    assert f"notice {notice.notice_id} did not reach 127.0.0.1 and is given up" in log
    assert "/hook" not in log, "the rest of an address is often a secret"


def test_restarts_in_quick_succession_do_not_send_one_message_each(
    client: AgentClient, place: Place, hire: Hire, receiver: Receiver, told: dict[str, object]
) -> None:
    crash(client, place, hire, told, times=3)
    eventually(lambda: told_of(client).times == 3)
    eventually(lambda: told_of(client).delivered_at)
    assert [message["type"] for _, message in receiver.received] == ["notice.created"], "the rest is told together"


def test_care_begun_by_a_worker_that_died_is_finished_by_another(
    client: AgentClient, place: Place, hire: Hire, receiver: Receiver, told: dict[str, object]
) -> None:
    receiver.refuse = 2
    slow = {**told, "webhook_retry_seconds": "0.1,2,0.1"}
    worker = hire("tests.agents:gate", **slow)
    client.enqueue("gate", "wait", session="s-1")
    eventually(lambda: place.world("ran"))
    worker.kill()
    worker = hire("tests.agents:gate", **slow)
    eventually(lambda: receiver.tries == 2)
    worker.kill()
    hire("tests.agents:gate", **slow)
    eventually(lambda: told_of(client).delivered_at)
    assert receiver.received[0][1]["type"] == "notice.created"


def test_alerts_go_out_when_they_are_raised_and_when_they_are_over(
    client: AgentClient, db: psycopg.Connection, hire: Hire, receiver: Receiver, told: dict[str, object]
) -> None:
    hire("tests.agents:echo", **told)
    for _ in range(3):
        db.execute("SELECT agent.raise_alert('test', 'The disk is full.', 'Nothing.', 'Make room.')")
    eventually(lambda: client.alerts()[0].delivered_at)
    db.execute("SELECT agent.resolve_alert('test')")
    eventually(lambda: len(receiver.received) == 2)
    assert [(identity, message["type"]) for identity, message in receiver.received] == [
        ("alert-1-raised", "alert.raised"), ("alert-1-resolved", "alert.resolved")
    ]  # fmt: skip
    assert receiver.received[0][1]["data"]["advice"] == "Make room."
    [alert] = client.alerts(resolved=True)
    assert alert.times == 3, "one alert, however often it happens"
