"""The real provider path: Pydantic AI's OpenAI model over HTTP, against a scripted server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import psycopg
import pytest

from agent.client import AgentClient
from agent.durability import Terms, make_durable
from agent.request import Budget
from store.database import Database
from store.errors import TaskFailed
from tests.provider import Provider
from tests.rows import every_row
from tests.workers import Place, Worker, eventually


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    started = Provider()
    monkeypatch.setenv("TEST_PROVIDER", started.url)
    yield started
    started.close()


@pytest.fixture
def online(provider: Provider, client: AgentClient, hire: Callable[..., Worker]) -> AgentClient:
    hire("tests.provider:online", stall_seconds=2)
    return client


def test_tools_are_called_and_tokens_counted(online: AgentClient, provider: Provider, db: psycopg.Connection) -> None:
    task = online.enqueue("online", "weather please")
    assert task.result(timeout=30) == "answer: rain in Oslo"
    assert [step.name for step in task.steps()] == ["online__model.request", "tool.weather", "online__model.request"]
    assert db.execute("SELECT context_tokens FROM agent.sessions").fetchall() == [(18,)]
    assert provider.streamed == 2, "inside a task, answers are streamed"


@pytest.mark.parametrize(("word", "requests"), [("busy", 3), ("broken", 2), ("silent", 2)])
def test_a_passing_failure_is_retried(online: AgentClient, provider: Provider, word: str, requests: int) -> None:
    task = online.enqueue("online", f"{word} now")
    assert task.result(timeout=60) == f"answer: {word} now"
    assert provider.requests[word] == requests
    assert len(task.steps()) == 1


@pytest.mark.parametrize(("word", "status"), [("refused", "401"), ("rejected", "400")])
def test_a_refusal_is_final_and_visible(online: AgentClient, provider: Provider, word: str, status: str) -> None:
    task = online.enqueue("online", f"{word} now", session="s-1")
    with pytest.raises(TaskFailed, match=f"status_code: {status}.*{word} indeed"):
        task.result(timeout=30)
    assert provider.requests[word] == 1
    [step] = task.steps()
    assert f"{word} indeed" in (step.error or "")
    assert "model.failed" in [event.kind for event in online.session("s-1").events()]
    assert online.enqueue("online", "and now?", session="s-1").result(timeout=30) == "answer: and now?"
    said = [message["content"] for message in provider.bodies[-1]["messages"] if message["role"] == "user"]
    assert said == [f"{word} now", "and now?"]


def test_the_key_of_the_provider_is_nowhere_in_the_rows(
    online: AgentClient, place: Place, db: psycopg.Connection
) -> None:
    online.enqueue("online", "hello").result(timeout=30)
    with pytest.raises(TaskFailed):
        online.enqueue("online", "refused now").result(timeout=30)
    for table, row in every_row(db):
        assert "sk-secret-key" not in row, table
    assert "sk-secret-key" not in (place.folder / "worker.log").read_text()


def test_streaming_passes_through_the_durable_copy_outside_a_task(provider: Provider, url: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    plain = Agent(
        OpenAIChatModel("scripted-1", provider=OpenAIProvider(base_url=provider.url, api_key="x")), name="plain"
    )
    before = dict(vars(plain))

    async def read() -> str:
        durable = make_durable(plain, Terms(Database(url), Budget(0.8, 20, None)))
        async with durable.run_stream("say something") as stream:
            return "".join([piece async for piece in stream.stream_text(delta=True)])

    assert asyncio.run(read()) == "answer: say something"
    assert vars(plain) == before, "the user's own agent is as it was"
    assert provider.bodies[-1]["stream"] is True


def test_a_model_request_killed_in_the_air_is_asked_again_and_recorded_once(
    provider: Provider, client: AgentClient, hire: Callable[..., Worker]
) -> None:
    doomed = hire("tests.provider:online", stall_seconds=60)
    task = client.enqueue("online", "silent now")
    eventually(lambda: provider.requests["silent"] == 1)
    doomed.kill()
    hire("tests.provider:online")
    assert task.result(timeout=30) == "answer: silent now"
    assert provider.requests["silent"] == 2
    assert len(task.steps()) == 1
