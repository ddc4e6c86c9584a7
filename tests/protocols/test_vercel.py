"""Vercel AI with the real `ai` package: streaming, tools, approvals, and the same answer after a kill -9."""

from __future__ import annotations

from typing import Any

from agent.client import AgentClient
from store.keys import new_secret
from tests.protocols.service import NEW, TEXT, let, needs_node, node, service
from tests.serving import serving
from tests.workers import Place, Worker

pytestmark = needs_node


def parts_of(message: dict[str, Any]) -> list[Any]:
    """What a page shows of a message."""
    return [
        part["text"] if part["type"] == "text" else (part["type"], part["state"], part.get("output"))
        for part in message["parts"]
        if part["type"] != "step-start"
    ]


LOOKED = ("tool-look_up", "output-available", "order 17 is on its way")


def test_an_answer_streams_with_its_tool_call(place: Place, client: AgentClient) -> None:
    let(place, 3)
    with service(place) as served:
        url = f"{served.address}/v1/vercel/guide"
        with node("vercel.mjs", url=url, chat="c-1", message="m-1", text="where is it?") as page:
            page.until(lambda said: said.get("shown") == "word1 word2 word3 ")
            let(place, 9)
            end = page.end()
        assert end["status"] == "ready"
        assert [message["role"] for message in end["messages"]] == ["user", "assistant"]
        assert parts_of(end["messages"][1]) == [LOOKED, TEXT]
        assert not [said for said in page.said if "cut" in said]
    [task] = client.tasks()
    assert (task.session_id, task.input) == ("c-1", "where is it?")


def test_the_same_answer_goes_on_after_a_kill(place: Place, client: AgentClient) -> None:
    let(place, 4)
    with service(place) as served:
        url = f"{served.address}/v1/vercel/guide"
        with node("vercel.mjs", url=url, chat="c-1", message="m-1", text="where is it?") as page:
            page.until(lambda said: said.get("shown", "").endswith("word4 "))
            served.kill()
            page.until(lambda said: "cut" in said)
            let(place, 2, "new")
            served.start()
            page.until(lambda said: said.get("shown") == "new1 new2 ")
            let(place, 9, "new")
            end = page.end()
        assert [message["role"] for message in end["messages"]] == ["user", "assistant"]
        assert parts_of(end["messages"][1]) == [LOOKED, NEW]
        with node("vercel.mjs", url=url, chat="c-1", resume=True) as page:
            reloaded = page.end()
        assert reloaded["messages"][0]["id"] == end["messages"][1]["id"]
        assert parts_of(reloaded["messages"][0]) == [LOOKED, NEW]
    assert len(client.tasks()) == 1
    assert len(place.world("looked")) == 1


def test_a_page_that_reloads_goes_on_with_the_same_answer(place: Place, client: AgentClient) -> None:
    let(place, 4)
    with service(place) as served:
        url = f"{served.address}/v1/vercel/guide"
        with node("vercel.mjs", url=url, chat="c-1", message="m-1", text="where is it?") as page:
            page.until(lambda said: said.get("shown", "").endswith("word4 "))
        with node("vercel.mjs", url=url, chat="c-1", resume=True) as page:
            page.until(lambda said: said.get("shown", "").endswith("word4 "))
            let(place, 9)
            assert parts_of(page.end()["messages"][-1]) == [LOOKED, TEXT]
        with node("vercel.mjs", url=url, chat="unknown", resume=True) as page:
            assert page.end()["messages"] == []
    assert len(client.tasks()) == 1 and len(place.world("spoke")) == 1


def test_what_a_dead_worker_said_is_not_what_the_page_ends_with(place: Place, hire: Any, url: str) -> None:
    let(place, 4, "old")
    doomed: Worker = hire("tests.protocols.speakers:guide")
    with serving(url) as served:
        chat = f"{served.address}/v1/vercel/guide"
        with node("vercel.mjs", url=chat, chat="c-1", message="m-1", text="where is it?") as page:
            page.until(lambda said: said.get("shown", "").endswith("old4 "))
            doomed.kill()
            let(place, 9, "new")
            hire("tests.protocols.speakers:guide")
            end = page.end()
    assert parts_of(end["messages"][1]) == [LOOKED, NEW]
    assert [said["cut"] for said in page.said if "cut" in said] == ["the answer is given anew; resume the stream"]


def test_an_approval_is_asked_and_given_in_place(place: Place) -> None:
    with service(place) as served:
        url = f"{served.address}/v1/vercel/guard"
        with node("vercel.mjs", url=url, chat="c-1", message="m-1", text="open", decide={"approved": True}) as page:
            assert page.until(lambda said: "asked" in said)["asked"][0]["input"] == {"gate": 4}
            end = page.end()
        assert [message["role"] for message in end["messages"]] == ["user", "assistant"]
        opened = [("tool-open_gate", "output-available", "gate 4 is open"), "done: gate 4 is open"]
        assert parts_of(end["messages"][1]) == opened
        with node("vercel.mjs", url=url, chat="c-1", resume=True) as page:
            assert parts_of(page.end()["messages"][0]) == opened, "one answer, told again whole"
        no = {"approved": False, "reason": "not at night"}
        with node("vercel.mjs", url=url, chat="c-2", message="m-1", text="open", decide=no) as page:
            shown = parts_of(page.end()["messages"][1])
        assert shown[0][1] == "output-denied" and shown[1] == "done: not at night"
    assert place.world("opened") == [{"gate": 4}]


def test_what_is_refused_is_said(client: AgentClient, url: str) -> None:
    message = {"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
    body: dict[str, Any] = {"trigger": "submit-message", "id": "c-1", "messages": [message]}
    with serving(url) as served, served.client() as http:
        client.enqueue("echo", "mine", session="c-9", user="ana")
        assert http.post("/v1/vercel/nobody", json=body).status_code == 404
        assert http.post("/v1/vercel/echo", json=body | {"messages": []}).status_code == 422
        assert http.post("/v1/vercel/echo", json=body | {"trigger": "regenerate-message"}).status_code == 422
        assert http.post("/v1/vercel/echo", json={"id": 1}).status_code == 422
    with serving(url, keys=(new_secret(),)) as served, served.client() as http:
        assert http.post("/v1/vercel/echo", json=body).status_code == 401
        assert http.get("/v1/vercel/echo/c-9/stream").status_code == 401
    assert [task.input for task in client.tasks()] == ["mine"]
