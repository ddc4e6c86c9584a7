"""A scripted provider on loopback that speaks OpenAI's chat protocol, and an agent that uses it for real."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agent import pure

online = Agent(
    OpenAIChatModel(
        "scripted-1",
        provider=OpenAIProvider(
            base_url=os.environ.get("TEST_PROVIDER", "http://127.0.0.1:9/v1"), api_key="sk-secret-key"
        ),
    ),
    name="online",
    instructions="Answer.",
)


@online.tool_plain
@pure
def weather(city: str) -> str:
    return f"rain in {city}"


FAULTS = {"busy": (429, 2), "broken": (500, 1), "refused": (401, 99), "rejected": (400, 99), "silent": (None, 1)}


class Provider:
    """Answers by what the user says: a word may fail a number of times before it works."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.streamed = 0
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.answer(self, body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        said = [message["content"] for message in body["messages"] if message["role"] == "user"][-1]
        word = said.split()[0]
        self.requests[word] += 1
        status, times = FAULTS.get(word, (200, 0))
        if self.requests[word] <= times:
            if status is None:
                self.released.wait(60)
                return
            send(handler, status, {"error": {"message": f"{word} indeed", "type": "error", "code": word}})
        elif body.get("stream"):
            self.streamed += 1
            stream(handler, completion(body, word))
        else:
            send(handler, 200, completion(body, word))


def completion(body: dict[str, Any], word: str) -> dict[str, Any]:
    last = body["messages"][-1]
    if word == "weather" and last["role"] != "tool":
        arguments = json.dumps({"city": "Oslo"})
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
            ],
        }
    else:
        message = {"role": "assistant", "content": f"answer: {last['content']}"}
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "id": "c1", "object": "chat.completion", "created": 1, "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }  # fmt: skip


def send(handler: BaseHTTPRequestHandler, status: int, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("x-should-retry", "false")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def stream(handler: BaseHTTPRequestHandler, whole: dict[str, Any]) -> None:
    """The same answer in pieces: a word at a time, or a tool call."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()
    [choice] = whole["choices"]
    message = choice["message"]
    deltas: list[dict[str, Any]] = [{"content": f"{word} "} for word in (message["content"] or "").split()]
    if deltas:
        deltas[-1]["content"] = deltas[-1]["content"].rstrip()
    for index, call in enumerate(message.get("tool_calls", ())):
        deltas.append({"tool_calls": [{"index": index, **call}]})
    base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": whole["model"]}
    chunks = [{**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    chunks.append({**base, "choices": [], "usage": whole["usage"]})
    for chunk in chunks:
        handler.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
    handler.wfile.write(b"data: [DONE]\n\n")
