"""AG-UI with its real client: streaming, tools, approvals, and the same answer after a kill -9."""

from __future__ import annotations

from typing import Any

import httpx

from agent.client import AgentClient
from tests.protocols.service import NEW, TEXT, let, needs_node, node, service
from tests.serving import serving
from tests.workers import Place, Worker

pytestmark = needs_node


def text_of(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "assistant" and message.get("content")]


def test_an_answer_streams_with_its_tool_call(place: Place, client: AgentClient) -> None:
    let(place, 3)
    with service(place) as served:
        url = f"{served.address}/v1/ag-ui/guide"
        with node("ag_ui.mjs", url=url, thread="t-1", run="r-1", text="where is it?") as page:
            page.until(lambda said: said.get("shown") == "word1 word2 word3 ")
            let(place, 9)
            end = page.end()
        kinds = [message["role"] for message in end["messages"]]
        assert kinds == ["user", "assistant", "tool", "assistant"]
        [call] = end["messages"][1]["toolCalls"]
        assert (call["function"]["name"], call["function"]["arguments"]) == ("look_up", '{"order": "17"}')
        assert end["messages"][2]["content"] == "order 17 is on its way"
        assert text_of(end["messages"]) == [TEXT]
        assert not [said for said in page.said if "cut" in said]

        with node("ag_ui.mjs", url=url, thread="t-1", run="r-1", text="where is it?") as page:
            assert text_of(page.end()["messages"]) == [TEXT]
    found = [(task.input, task.session_id, task.agent) for task in client.tasks()]
    assert found == [("where is it?", "t-1", "guide")], "the same run is the same task"
    assert len(place.world("looked")) == 1


def test_the_same_answer_goes_on_after_a_kill(place: Place, client: AgentClient) -> None:
    let(place, 4)
    with service(place) as served:
        url = f"{served.address}/v1/ag-ui/guide"
        with node("ag_ui.mjs", url=url, thread="t-1", run="r-1", text="where is it?") as page:
            page.until(lambda said: said.get("shown", "").endswith("word4 "))
            served.kill()
            page.until(lambda said: "cut" in said)
            let(place, 2, "new")
            served.start()
            page.until(lambda said: said.get("shown") == "new1 new2 ")
            let(place, 9, "new")
            end = page.end()
    assert text_of(end["messages"]) == [NEW]
    assert [message["role"] for message in end["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert len(client.tasks()) == 1
    assert len(place.world("looked")) == 1 and len(place.world("spoke")) == 2


def test_what_a_dead_worker_said_is_taken_back_on_the_open_line(place: Place, hire: Any, url: str) -> None:
    let(place, 4, "old")
    doomed: Worker = hire("tests.protocols.speakers:guide")
    with serving(url) as served:
        run = f"{served.address}/v1/ag-ui/guide"
        with node("ag_ui.mjs", url=run, thread="t-1", run="r-1", text="where is it?") as page:
            page.until(lambda said: said.get("shown", "").endswith("old4 "))
            doomed.kill()
            let(place, 9, "new")
            hire("tests.protocols.speakers:guide")
            end = page.end()
    assert text_of(end["messages"]) == [NEW]
    assert not [said for said in page.said if "cut" in said]


def test_an_approval_is_an_interrupt(place: Place) -> None:
    with service(place) as served:
        url = f"{served.address}/v1/ag-ui/guard"
        with node("ag_ui.mjs", url=url, thread="t-1", run="r-1", text="open", decide={"approved": True}) as page:
            asked = page.until(lambda said: "asked" in said)["asked"]
            assert "open_gate" in asked[0]["message"]
            end = page.end()
        assert text_of(end["messages"])[-1] == "done: gate 4 is open"
        no = {"approved": False, "reason": "not at night"}
        with node("ag_ui.mjs", url=url, thread="t-2", run="r-1", text="open", decide=no) as page:
            assert text_of(page.end()["messages"])[-1] == "done: not at night"
    assert place.world("opened") == [{"gate": 4}]


def test_what_is_refused_is_said(place: Place, client: AgentClient, url: str) -> None:
    with serving(url) as served, served.client() as http:
        body: dict[str, Any] = {
            "threadId": "t-1", "runId": "r-1", "state": {}, "tools": [], "context": [], "forwardedProps": {},
            "messages": [{"id": "m", "role": "user", "content": "hello"}],
        }  # fmt: skip
        assert http.post("/v1/ag-ui/nobody", json=body).status_code == 404
        assert http.post("/v1/ag-ui/echo", json={"threadId": "t"}).status_code == 422
        assert http.post("/v1/ag-ui/echo", json=body | {"messages": []}).status_code == 422
        assert http.post("/v1/ag-ui/echo", json=body | {"threadId": "x" * 300}).status_code == 422
        client.enqueue("echo", "mine", session="t-9", user="ana")
        strange = body | {"threadId": "t-9", "forwardedProps": {"user": "ben"}}
        assert http.post("/v1/ag-ui/echo", json=strange).status_code in (403, 404, 409)
    with serving(url, keys=("k",)) as served, served.client() as http:
        refused: httpx.Response = http.post("/v1/ag-ui/echo", json=body)
        assert refused.status_code == 401
    assert [task.input for task in client.tasks()] == ["mine"]
