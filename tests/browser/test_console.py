"""What people do in the console, done by a browser."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent.client import AgentClient
from tests.browser.conftest import Serve, Shoot
from tests.browser.staff import HOSTILE
from tests.workers import ROOT, Place, eventually

SUPPORT = "tests.browser.staff:support"


def let(place: Place, words: int) -> None:
    waiting = place.folder / "words.new"
    waiting.write_text(str(words))
    waiting.replace(place.folder / "words")


def living_pids(db: psycopg.Connection) -> list[int]:
    return [pid for (pid,) in db.execute("SELECT pid FROM agent.workers WHERE state = 'alive'").fetchall()]


def test_a_first_visit_invites_to_send_the_first_message(page: Any, serve: Serve, shoot: Shoot) -> None:
    page.goto(serve())
    page.get_by_role("heading", name="Nothing here yet").wait_for()
    assert page.locator(".counts .good dd").inner_text() == "0"
    shoot("first-visit")
    page.get_by_label("Your first message").fill("Hello, who are you?")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/sessions/"))
    page.locator(".entry.agent .bubble", has_text="I will remember.").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.locator(".sessions li", has_text="Hello, who are you?").wait_for()


def test_an_answer_is_read_while_it_is_made(page: Any, serve: Serve, shoot: Shoot, place: Place) -> None:
    let(place, 0)
    page.goto(serve("tests.talkers:talker"))
    page.get_by_label("Your first message").fill("talk")
    page.get_by_role("button", name="Send").click()
    page.wait_for_url(re.compile("/sessions/"))
    let(place, 4)
    page.locator("#live .bubble", has_text="word4").wait_for()
    assert page.locator("#live .bubble").inner_text().split() == ["word1", "word2", "word3", "word4"]
    shoot("streaming")
    let(place, 9)
    page.locator("#talk .agent .bubble", has_text="word9").wait_for()
    page.locator("#live").wait_for(state="hidden")
    assert page.locator(".agent .bubble").count() == 1, "the record takes the place of the pieces"
    page.get_by_label("Message", exact=True).fill("again")
    page.keyboard.press("Enter")
    page.locator("#talk .user .bubble", has_text="again").wait_for()
    assert page.get_by_label("Message", exact=True).input_value() == ""


def test_a_page_left_open_goes_on_after_kill_9_in_the_middle_of_an_answer(
    page: Any, serve: Serve, shoot: Shoot, place: Place, client: AgentClient, db: psycopg.Connection
) -> None:
    let(place, 4)
    address = serve("tests.talkers:talker")
    client.enqueue("talker", "talk to me", session="s-1")
    page.goto(f"{address}/sessions/s-1")
    page.locator("#live .bubble", has_text="word4").wait_for()
    let(place, 2)
    [pid] = living_pids(db)
    os.kill(pid, signal.SIGKILL)
    page.locator("#pulse[data-state=lost]").wait_for()
    page.locator("#live .bubble", has_text="word2").wait_for()
    page.locator("#pulse[data-state=live]").wait_for()
    page.locator("#talk div.notice", has_text="The worker of this session died").wait_for()
    assert "word4" not in page.locator("#live").inner_text(), "what was said before the kill was taken back"
    shoot("after-kill")
    let(place, 9)
    page.locator("#talk .agent .bubble", has_text="word9").wait_for()
    texts = [text.split() for text in page.locator(".agent .bubble").all_inner_texts()]
    assert texts == [[f"word{n}" for n in range(1, 10)]]
    page.locator("#status", has_text="recovered").wait_for()


def test_a_call_is_approved_in_place_with_other_arguments(
    page: Any, serve: Serve, shoot: Shoot, client: AgentClient
) -> None:
    address = serve(SUPPORT)
    task = client.enqueue("support", "Please refund order 17", session="acme-17", user="ana")
    assert task.settled_status(timeout=30) == "waiting"
    page.goto(address)
    page.locator(".sessions li.ask", has_text="waiting for your approval").wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("acme-17"))
    shoot("approve")
    arguments = page.locator("textarea[name=arguments]")
    arguments.fill(arguments.input_value().replace("4900", "2500"))
    page.get_by_role("button", name="Approve").click()
    page.locator(".agent .bubble", has_text="25.00 EUR refunded").wait_for()
    assert page.locator("[data-question]").count() == 0
    assert "25.00 EUR" in str(task.result(timeout=30))
    page.keyboard.press("2")
    page.wait_for_url(re.compile("/timeline$"))
    page.locator("summary.step", has_text="look_up").first.click()
    page.locator("pre", has_text="one lamp").wait_for()
    shoot("timeline")
    page.keyboard.press("3")
    page.wait_for_url(re.compile("/context$"))
    page.locator(".sight .restored", has_text="plan, 1 of 3 done").wait_for()
    shoot("context")
    page.keyboard.press("4")
    page.locator(".effects", has_text="done once").wait_for()
    shoot("state")


def test_a_denial_reaches_the_model(page: Any, serve: Serve, client: AgentClient) -> None:
    address = serve(SUPPORT)
    task = client.enqueue("support", "Please refund order 17", session="acme-17")
    assert task.settled_status(timeout=30) == "waiting"
    page.goto(f"{address}/sessions/acme-17")
    page.get_by_placeholder("Why not?").fill("it was never paid")
    page.get_by_role("button", name="Deny").click()
    page.locator(".agent .bubble", has_text="it was never paid").wait_for()


def test_a_notice_is_corrected_and_a_session_forked_from_a_place(
    page: Any, serve: Serve, shoot: Shoot, client: AgentClient, db: psycopg.Connection
) -> None:
    address = serve(SUPPORT)
    client.enqueue("support", "What are your hours?", session="s-1", user="ana").result(timeout=30)
    client.enqueue("support", "And on Sundays?", session="s-1", user="ana").result(timeout=30)
    db.execute("SELECT agent.notice_interruption('s-1', task_id, 'crash', 'test') FROM agent.tasks WHERE seq = 2")
    page.goto(f"{address}/sessions/s-1")
    page.get_by_label("Correction").fill("It was about Saturdays.")
    shoot("notice")
    page.get_by_role("button", name="Correct").click()
    page.locator(".correction", has_text="It was about Saturdays.").wait_for()
    assert client.session("s-1").notices()[0].correction == "It was about Saturdays."
    page.locator(".entry.agent", has_text="hours").get_by_role("button", name="fork from here").click()
    page.wait_for_url(lambda url: not url.endswith("s-1"))
    page.locator(".title p", has_text="fork of").wait_for()
    assert page.locator("#talk .user .bubble").all_inner_texts() == ["What are your hours?"]
    shoot("fork")


def test_a_rewind_lists_first_what_it_cannot_undo(page: Any, serve: Serve, client: AgentClient) -> None:
    address = serve(SUPPORT)
    client.enqueue("support", "hello", session="s-1").result(timeout=30)
    task = client.enqueue("support", "refund order 17", session="s-1")
    assert task.settled_status(timeout=30) == "waiting"
    client.approve(task.id, task.questions()[0].call_id)
    task.result(timeout=30)
    page.goto(f"{address}/sessions/s-1")
    page.locator(".entry.agent", has_text="You said: hello").get_by_text("rewind to here").click()
    page.locator(".dialog li", has_text="refund").wait_for()
    with page.expect_navigation():
        page.get_by_role("button", name="Rewind").click()
    assert page.locator("#talk .user .bubble").all_inner_texts() == ["hello"]


def test_a_dead_letter_is_retried_with_other_words(
    page: Any, serve: Serve, shoot: Shoot, client: AgentClient, db: psycopg.Connection
) -> None:
    address = serve("tests.agents:echo")
    db.execute("INSERT INTO agent.sessions (session_id, agent, mode) VALUES ('s-1', 'echo', 'paused')")
    task = client.enqueue("echo", "divide by zero", session="s-1")
    db.execute("SELECT agent.bury(%s, 'it killed its worker, alone in a process of its own', '{}')", [task.id])
    client.resume("s-1")
    page.goto(address)
    page.locator(".counts .bad", has_text="dead letters").get_by_role("link").click()
    shoot("dead-letters")
    page.locator(".letter textarea[name=input]").fill("divide by one")
    page.get_by_role("button", name="Retry").click()
    page.wait_for_url(re.compile("/sessions/s-1"))
    page.locator(".agent .bubble", has_text="divide by one").wait_for()
    assert client.dead_letters() == []


def test_a_drill_kills_the_worker_and_the_recovery_is_seen_as_it_happens(
    page: Any, serve: Serve, shoot: Shoot, client: AgentClient, place: Place, db: psycopg.Connection
) -> None:
    address = serve("tests.agents:gate", drills=1)
    task = client.enqueue("gate", "pass the gate", session="s-1")
    eventually(lambda: place.world("ran"))
    [before] = living_pids(db)
    page.goto(f"{address}/workers")
    page.get_by_role("button", name="kill -9").click()
    page.locator(".lately", has_text="the task goes on from its records").wait_for()
    page.locator(".lately .worker-died").wait_for()
    shoot("workers")
    assert before not in living_pids(db)
    (place.folder / "open").touch()
    assert task.result(timeout=30) == "passed"


def test_without_drills_nobody_is_killed(page: Any, serve: Serve, db: psycopg.Connection) -> None:
    address = serve("tests.agents:echo", drills=0)
    page.goto(f"{address}/workers")
    page.locator(".workers .card").wait_for()
    assert page.get_by_role("button", name="kill -9").count() == 0
    [(worker,)] = db.execute("SELECT worker_id FROM agent.workers WHERE state = 'alive'").fetchall()
    assert page.request.post(f"{address}/console/workers/{worker}/kill").status == 403


def test_script_is_shown_as_text(page: Any, serve: Serve, shoot: Shoot, client: AgentClient) -> None:
    address = serve("tests.browser.staff:hostile")
    client.enqueue("hostile", f"<script>alert('message')</script> {HOSTILE}", session=f"s-1{HOSTILE}").result(
        timeout=30
    )
    page.goto(address)
    page.locator(".sessions b", has_text=HOSTILE).wait_for()
    page.locator(".sessions a").first.click()
    page.locator(".agent .bubble", has_text="<script>alert('answer')</script>").wait_for()
    page.locator(".call code", has_text=HOSTILE).wait_for()
    shoot("script-as-text")
    for tab in ("2", "3", "4"):
        page.keyboard.press("Escape")
        page.keyboard.press(tab)
        page.locator(".tabs a[aria-current]").nth(0).wait_for()
    page.locator(".files a", has_text=f"notes/{HOSTILE}.md").wait_for()
    assert page.locator("main img, main script").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colour_schemes_and_the_switch(
    open_page: Callable[..., Any], serve: Serve, shoot: Shoot, client: AgentClient, scheme: str
) -> None:
    address = serve(SUPPORT)
    client.enqueue("support", "What are your hours?", session="s-1", user="ana").result(timeout=30)
    page = open_page(color_scheme=scheme)
    page.goto(f"{address}/sessions/s-1")
    page.locator(".agent .bubble").wait_for()
    shoot(f"scheme-{scheme}", page)
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = "rgb(246, 247, 246)", "rgb(16, 21, 20)"
    assert page.evaluate(ground) == (light if scheme == "light" else dark)
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate(ground) == (dark if scheme == "light" else light)
    page.reload()
    assert page.evaluate(ground) == (dark if scheme == "light" else light), "and it stays so"


def test_everything_fits_into_375_pixels(
    open_page: Callable[..., Any], serve: Serve, shoot: Shoot, client: AgentClient
) -> None:
    address = serve(SUPPORT)
    client.enqueue("support", "Please refund order 17", session="acme-17", user="ana").settled_status(timeout=30)
    client.enqueue("support", "word" * 60, session="long").result(timeout=30)
    page = open_page(viewport={"width": 375, "height": 740}, device_scale_factor=2)
    for path in ("/", "/sessions/acme-17", "/sessions/acme-17/timeline", "/sessions/acme-17/context",
                 "/sessions/acme-17/state", "/sessions/long", "/workers"):  # fmt: skip
        page.goto(f"{address}{path}")
        page.locator("main > *").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, path
        if path in ("/", "/sessions/acme-17"):
            shoot("narrow" if path == "/" else "narrow-session", page)


def test_who_may_only_read_sees_no_buttons_and_who_has_a_user_sees_that_user_only(
    open_page: Callable[..., Any], serve: Serve, client: AgentClient
) -> None:
    address = serve(SUPPORT)
    client.enqueue("support", "Please refund order 17", session="anas", user="ana").settled_status(timeout=30)
    client.enqueue("support", "hello", session="bens", user="ben").result(timeout=30)
    key = client.make_key("reader", user="ana", read_only=True)
    page = open_page()
    eventually(lambda: page.request.get(f"{address}/v1/agents").status == 401)
    page.goto(address)
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("This key is not known").wait_for()
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.locator(".sessions li").wait_for()
    assert page.locator(".sessions li").count() == 1
    assert page.get_by_text("New session").count() == 0
    page.goto(f"{address}/sessions/anas")
    page.locator("[data-question]").wait_for()
    assert page.locator("main button").count() == 0
    assert page.goto(f"{address}/sessions/bens").status == 404
    page.goto(address)
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("API key").wait_for()


def test_every_event_of_the_journal_is_heard_by_the_page() -> None:
    written = set(re.findall(r"'([a-z]+\.[a-z_]+)'", (ROOT / "store" / "schema.sql").read_text()))
    kinds = {kind for kind in written if not kind.startswith("perdure.")}
    script = Path(ROOT / "agent" / "console" / "static" / "console.js").read_text()
    assert {kind for kind in kinds if f'"{kind}"' not in script} == set()
