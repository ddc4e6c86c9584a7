"""OpenAI Responses with the real `openai` client: streaming and not, conversations, and a kill -9 in mid-answer."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import openai
import pytest
from openai import OpenAI

from agent.client import AgentClient
from tests.protocols.service import NEW, TEXT, let, service
from tests.serving import serving
from tests.workers import Place, Worker, eventually


def connect(address: str, **options: Any) -> OpenAI:
    return OpenAI(base_url=f"{address}/v1", api_key=options.pop("key", "none"), **options)


def text_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def test_an_answer_streams_with_its_tool_call_and_is_read_again(place: Place, client: AgentClient) -> None:
    let(place, 3)
    with service(place) as served, connect(served.address) as ai:
        with ai.responses.stream(model="guide", input="where is it?", conversation="c-1") as stream:
            events: list[Any] = []
            for event in stream:
                events.append(event)
                if text_of(events).endswith("word3 "):
                    let(place, 9)
            final = stream.get_final_response()
        assert text_of(events) == final.output_text == TEXT
        call: Any = final.output[0]
        assert (call.type, call.name, call.arguments) == ("mcp_call", "look_up", '{"order":"17"}')
        assert (call.status, call.output) == ("completed", "order 17 is on its way")
        numbers = [event.sequence_number for event in events]
        assert numbers == sorted(set(numbers))

        again = ai.responses.retrieve(final.id)
        assert (again.output_text, again.status) == (TEXT, "completed")
        more = ai.responses.create(model="guide", input="and now?", previous_response_id=final.id)
        assert more.output_text == TEXT and more.conversation is not None and more.conversation.id == "c-1"
        other = ai.responses.create(model="guide", input=[{"role": "user", "content": "elsewhere"}])
        assert other.conversation is not None and other.conversation.id != "c-1"
    assert [(task.session_id == "c-1", task.input) for task in client.tasks()] == [
        (False, "elsewhere"), (True, "and now?"), (True, "where is it?"),
    ]  # fmt: skip


def test_a_stream_goes_on_after_a_kill(place: Place, client: AgentClient) -> None:
    let(place, 4)
    with service(place) as served, connect(served.address, max_retries=50) as ai:
        heard: list[Any] = []
        stream = ai.responses.create(model="guide", input="where is it?", background=True, stream=True)
        with contextlib.suppress(Exception):  # what a client makes of a dead server is its own affair
            for event in stream:
                heard.append(event)
                if text_of(heard).endswith("word4 "):
                    served.kill()
        assert text_of(heard) == "word1 word2 word3 word4 "
        assert heard[0].type == "response.created"
        served.start()
        let(place, 9)
        rest = list(ai.responses.retrieve(heard[0].response.id, stream=True, starting_after=heard[-1].sequence_number))
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == TEXT
    assert text_of(heard) + text_of(rest) == TEXT, "no word is missing and none comes twice"
    assert len(client.tasks()) == 1
    assert len(place.world("looked")) == 1 and len(place.world("spoke")) == 2


def test_a_plain_call_that_is_tried_again_gets_the_same_answer(place: Place, client: AgentClient) -> None:
    """The client tries again by itself when the server dies; the key makes that the same question."""
    let(place, 4)
    with service(place) as served, connect(served.address, max_retries=50) as ai:
        answers: list[Any] = []

        def ask() -> None:
            key = {"Idempotency-Key": "q-1"}
            answers.append(ai.responses.create(model="guide", input="where is it?", extra_headers=key))

        asking = threading.Thread(target=ask)
        asking.start()
        eventually(lambda: place.world("spoke"))
        served.kill()
        let(place, 9, "new")
        served.start()
        asking.join(60)
        assert answers[0].output_text == NEW
    assert len(client.tasks()) == 1


def test_a_text_that_is_taken_back_is_not_in_the_response(place: Place, hire: Any, url: str) -> None:
    let(place, 4, "old")
    doomed: Worker = hire("tests.protocols.speakers:guide")
    with (
        serving(url) as served,
        connect(served.address) as ai,
        ai.responses.stream(model="guide", input="where is it?") as stream,
    ):
        events: list[Any] = []
        for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta" and text_of(events) == "old1 old2 old3 old4 ":
                doomed.kill()
                let(place, 9, "new")
                hire("tests.protocols.speakers:guide")
        final = stream.get_final_response()
    assert final.output_text == NEW
    assert [item.type for item in final.output] == ["mcp_call", "message"]


def test_an_approval_is_asked_and_given(place: Place) -> None:
    with service(place) as served, connect(served.address) as ai:
        asked: Any = ai.responses.create(model="guard", input="open")
        [request] = asked.output
        assert (request.type, request.name, request.arguments) == ("mcp_approval_request", "open_gate", '{"gate": 4}')
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        for _ in range(2):
            done = ai.responses.create(model="guard", input=[answer], previous_response_id=asked.id)
            assert done.output_text == "done: gate 4 is open"
    assert place.world("opened") == [{"gate": 4}]


def test_a_response_in_the_background_is_cancelled(place: Place) -> None:
    let(place, 1)
    with service(place) as served, connect(served.address) as ai:
        begun = ai.responses.create(model="guide", input="where is it?", background=True)
        assert begun.status == "queued"
        eventually(lambda: ai.responses.retrieve(begun.id).status == "in_progress")
        ai.responses.cancel(begun.id)
        let(place, 9)
        eventually(lambda: ai.responses.retrieve(begun.id).status in ("cancelled", "incomplete", "completed"))


def test_what_is_refused_is_said_so_that_the_client_understands(client: AgentClient, url: str) -> None:
    with serving(url) as served, connect(served.address) as ai:
        with pytest.raises(openai.NotFoundError, match="There is no agent named 'nobody'"):
            ai.responses.create(model="nobody", input="hello")
        with pytest.raises(openai.UnprocessableEntityError, match="its own instructions"):
            ai.responses.create(model="echo", input="hello", instructions="be brief")
        with pytest.raises(openai.NotFoundError):
            ai.responses.retrieve("resp_none")
        with pytest.raises(openai.NotFoundError):
            ai.responses.create(model="echo", input="hello", previous_response_id="resp_none")
    ana, ben = (client.make_key(name, user=name) for name in ("ana", "ben"))
    with serving(url) as served:
        with connect(served.address, key=ana) as ai:
            mine = ai.responses.create(model="echo", input="mine", conversation="c-1", background=True)
        with connect(served.address, key=ben) as ai:
            with pytest.raises(openai.NotFoundError):
                ai.responses.retrieve(mine.id)
            with pytest.raises(openai.NotFoundError):
                ai.responses.create(model="echo", input="hello", conversation="c-1")
        with connect(served.address, key="wrong") as ai, pytest.raises(openai.AuthenticationError):
            ai.responses.retrieve(mine.id)
    assert [task.user_id for task in client.tasks()] == ["ana"]
