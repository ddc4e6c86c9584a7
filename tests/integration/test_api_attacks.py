"""What a hostile page, program or text tries against HTTP, one test each."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import psycopg
import pytest

from agent.client import AgentClient
from tests.serving import Served, serving

HUNDRED_MB = 100 * 1024 * 1024


@pytest.fixture
def served(url: str) -> Iterator[Served]:
    with serving(url, longest_body=1.0) as made:
        yield made


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client() as made:
        yield made


MESSAGE = {"agent": "echo", "input": "hi"}


FOREIGN = (
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
)


def test_another_sites_page_cannot_post(http: httpx.Client, client: AgentClient) -> None:
    client.enqueue("echo", "hi", session="s-1")
    for headers in FOREIGN:
        for method, path in (
            ("POST", "/v1/sessions/s-1/messages"),
            ("DELETE", "/v1/sessions/s-1"),
            ("PATCH", "/v1/sessions/s-1"),
            ("POST", "/console/sign-in"),
            ("POST", "/console/sign-out"),
        ):
            refused = http.request(method, path, json=MESSAGE, headers=headers)
            assert refused.status_code == 403, (headers, path)
            assert "access-control-allow-origin" not in refused.headers
    assert len(client.tasks()) == 1


def test_another_sites_page_cannot_use_a_sign_in(url: str, client: AgentClient) -> None:
    with serving(url, keys=("k",)) as made, made.client() as browser:
        assert browser.post("/console/sign-in", data={"key": "k"}).status_code == 303
        for headers in FOREIGN:
            assert browser.post("/v1/sessions", json={"agent": "echo"}, headers=headers).status_code == 403, headers
        assert client.sessions() == []
        assert browser.post("/v1/sessions", json={"agent": "echo"}).status_code == 201


def test_our_own_page_can_post(http: httpx.Client, served: Served) -> None:
    for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": served.address}, {"Sec-Fetch-Site": "none"}):
        assert http.post("/v1/sessions/s-1/messages", json=MESSAGE, headers=headers).status_code == 202


def test_a_page_gets_no_leave_to_ask(http: httpx.Client) -> None:
    asked = http.options(
        "/v1/sessions", headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    )
    assert asked.status_code == 405
    assert not [name for name in asked.headers if name.startswith("access-control-allow")]


def test_a_form_is_no_json(http: httpx.Client, client: AgentClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None):
        headers = {"Content-Type": kind} if kind else {}
        refused = http.post("/v1/sessions/s-1/messages", content=json.dumps(MESSAGE), headers=headers)
        assert refused.status_code == 415, kind
    assert client.tasks() == []


def test_a_name_that_was_made_to_point_here_is_not_answered(http: httpx.Client) -> None:
    for host in (
        "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example",
        "localhost@evil.example", "evil.example/localhost", "", "[::2]", "[::1", "0.0.0.0", "10.0.0.1",
    ):  # fmt: skip
        assert http.get("/v1/sessions", headers={"Host": host}).status_code == 400, host
        assert http.get("/", headers={"Host": host}).status_code == 400, host


def test_the_names_of_this_machine_are_answered(http: httpx.Client) -> None:
    for host in ("localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8080"):
        assert http.get("/v1/sessions", headers={"Host": host}).status_code == 200, host


def test_other_names_are_those_that_were_allowed(url: str) -> None:
    with serving(url, hosts=("agents.example", "*.inner.example")) as made, made.client() as browser:
        for host, status in (
            ("agents.example:443", 200),
            ("a.inner.example", 200),
            ("inner.example", 400),
            ("evil.example", 400),
            ("xinner.example", 400),
            ("localhost", 200),
        ):
            assert browser.get("/v1/agents", headers={"Host": host}).status_code == status, host
        assert browser.get("/livez", headers={"Host": "10.1.2.3"}).status_code == 200, "probes use addresses"


def test_with_keys_any_name_is_answered_unless_names_are_given(url: str) -> None:
    with serving(url, keys=("k",)) as made, made.client("k") as program:
        assert program.get("/v1/agents", headers={"Host": "agents.example"}).status_code == 200
    with serving(url, keys=("k",), hosts=("agents.example",)) as made, made.client("k") as program:
        assert program.get("/v1/agents", headers={"Host": "agents.example"}).status_code == 200
        assert program.get("/v1/agents", headers={"Host": "evil.example"}).status_code == 400


def talk(port: int, *parts: bytes, wait: float = 10) -> bytes:
    """What a server answers to bytes as they are."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as line:
        for part in parts:
            line.sendall(part)
        heard = b""
        while chunk := line.recv(65536):
            heard += chunk
    return heard


HEAD = b"POST /v1/sessions/s-1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_a_hundred_megabytes_are_refused_before_they_are_sent(served: Served) -> None:
    heard = talk(served.port, HEAD + b"Content-Length: %d\r\n\r\n" % HUNDRED_MB)
    assert heard.startswith(b"HTTP/1.1 413") and b"application/problem+json" in heard


def test_a_hundred_megabytes_are_not_read_however_they_come(http: httpx.Client, client: AgentClient) -> None:
    sent = 0

    def flood() -> Iterator[bytes]:
        nonlocal sent
        while sent < HUNDRED_MB:
            sent += 65536
            yield b"x" * 65536

    for length in ({}, {"Content-Length": str(HUNDRED_MB)}):
        sent = 0
        given = {"Content-Type": "application/json", **length}
        refused = http.post("/v1/sessions/s-1/messages", content=flood(), headers=given)
        assert refused.status_code == 413
        assert sent < HUNDRED_MB / 2, "most was never taken"
    assert client.tasks() == []


def test_a_slow_body_is_not_waited_for(served: Served, client: AgentClient) -> None:
    started = time.monotonic()
    heard = talk(served.port, HEAD + b'Content-Length: 100\r\n\r\n{"agent"')
    assert heard.startswith(b"HTTP/1.1 408") and b"application/problem+json" in heard
    assert 0.9 < time.monotonic() - started < 8
    assert client.tasks() == []


def test_a_body_that_trickles_is_not_waited_for(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as line:
        line.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        line.settimeout(0.1)
        started, heard = time.monotonic(), b""
        while not heard and time.monotonic() - started < 8:
            try:
                line.sendall(b"1\r\n \r\n")
                heard = line.recv(65536)
            except TimeoutError:
                continue
    assert heard.startswith(b"HTTP/1.1 408")


def test_a_request_id_cannot_carry_anything(http: httpx.Client, served: Served) -> None:
    ask = b"GET /v1/agents HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: "
    for given in (b"a\rSet-Cookie: x=1", b"a b", b"\xff\xfe", b"x" * 129, b"<script>", b"", b"a\tb"):
        head = talk(served.port, ask + given + b"\r\n\r\n").split(b"\r\n\r\n")[0]
        assert b"set-cookie" not in head.lower() and b"<script>" not in head
        if not head.startswith(b"HTTP/1.1 400"):  # the server itself refuses some
            [own] = [line for line in head.split(b"\r\n") if line.lower().startswith(b"x-request-id")]
            assert len(own.split(b": ")[1]) == 32
    assert http.get("/v1/agents", headers={"X-Request-Id": "mine-1.2:3"}).headers["x-request-id"] == "mine-1.2:3"


def test_an_idempotency_key_is_printable(http: httpx.Client, client: AgentClient) -> None:
    for given in ("x" * 501, "ä", "a\tb", ""):
        headers = [(b"Idempotency-Key", given.encode("latin-1"))]
        refused = http.post("/v1/sessions/s-1/messages", json=MESSAGE, headers=headers)
        assert refused.status_code == 422, given
    assert client.tasks() == []


def test_a_script_comes_back_as_json_and_nothing_else(http: httpx.Client) -> None:
    script = "<script>alert(1)</script>"
    http.post("/v1/sessions", json={"agent": "echo", "session_id": script, "title": script, "user": script})
    http.post("/v1/sessions/s-2/messages", json={"agent": "echo", "input": script})
    for path in ("/v1/sessions", "/v1/tasks", f"/v1/sessions/{script.replace('/', '%2F')}", f"/v1/tasks/{script}"):
        answer = http.get(path)
        assert answer.headers["content-type"] in ("application/json", "application/problem+json"), path
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert script not in http.get("/").text
    assert "&lt;script&gt;" in http.get("/").text


def test_every_answer_carries_what_keeps_browsers_from_harm(http: httpx.Client) -> None:
    answers = [
        http.get(path)
        for path in ("/", "/v1/sessions", "/nowhere", "/livez", "/console/static/console.css", "/openapi.json")
    ]
    answers += [http.get("/", headers={"Host": "evil.example"}), http.post("/v1/sessions", content=b"x")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["x-request-id"]
        assert "server" not in answer.headers


def test_nul_characters_are_refused_wherever_they_come(http: httpx.Client, client: AgentClient) -> None:
    client.enqueue("echo", "hi", session="s-1")
    for path in (
        "/v1/sessions/a%00b", "/v1/tasks/a%00b", "/v1/sessions/a%0Ab", "/v1/sessions/s-1/files/a%00b",
        "/v1/sessions?user=a%00b", "/v1/sessions?agent=%00", "/v1/sessions?text=%00", "/v1/tasks?user=%00",
        "/v1/questions?user=%00",
    ):  # fmt: skip
        assert http.get(path).status_code in (404, 422), path


@pytest.mark.parametrize("word", ["a\0b", "\ud800"])
def test_what_is_no_text_is_refused_in_every_field(http: httpx.Client, client: AgentClient, word: str) -> None:
    task = client.enqueue("echo", "hi", session="s-1").id
    for path, body in (
        ("/v1/sessions", {"agent": word}),
        ("/v1/sessions", {"agent": "echo", "session_id": word}),
        ("/v1/sessions", {"agent": "echo", "title": word}),
        ("/v1/sessions", {"agent": "echo", "user": word}),
        ("/v1/sessions/s-1/messages", {"input": word}),
        ("/v1/sessions/s-1/messages", {"input": "x", "user": word}),
        ("/v1/sessions/s-1/fork", {"session_id": word}),
        ("/v1/sessions/s-1/fork", {"title": word}),
        ("/v1/sessions/s-1/take-over", {"person": word}),
        ("/v1/sessions/s-1/say", {"text": word}),
        ("/v1/sessions/s-1/give-back", {"note": word}),
        ("/v1/sessions/s-1/notices/1/acknowledge", {"correction": word}),
        (f"/v1/tasks/{task}/approve", {"call_id": word}),
        (f"/v1/tasks/{task}/approve", {"call_id": "c", "arguments": {"x": [word]}}),
        (f"/v1/tasks/{task}/deny", {"call_id": "c", "reason": word}),
        (f"/v1/tasks/{task}/answer", {"call_id": "c", "text": word}),
        (f"/v1/tasks/{task}/cancel", {"reason": word}),
        (f"/v1/tasks/{task}/retry", {"input": word}),
        (f"/v1/tasks/{task}/discard", {"reason": word}),
    ):
        content = json.dumps(body).encode()
        refused = http.post(path, content=content, headers={"Content-Type": "application/json"})
        assert refused.status_code == 422, (path, refused.text)
    assert len(client.tasks()) == 1 and len(client.sessions()) == 1


def test_ids_are_never_more_than_ids(http: httpx.Client, client: AgentClient, db: psycopg.Connection) -> None:
    client.enqueue("echo", "hi", session="s-1", user="ana")
    words = (
        "'; DROP TABLE agent.sessions; --",
        "%s %(user)s %",
        "\\'",
        '"',
        "$1",
        "a' OR '1'='1",
        "../etc/passwd",
        "%",
    )
    for word in words:
        path = quote(word, safe="").replace(".", "%2E")
        assert http.get(f"/v1/sessions/{path}").status_code == 404, word
        assert http.get(f"/v1/tasks/{path}").status_code == 404, word
        for params in ({"user": word}, {"agent": word}, {"text": f"{word}{word}"}):
            assert http.get("/v1/sessions", params=params).json()["items"] == [], word
        made = http.post("/v1/sessions", json={"agent": "echo", "session_id": word, "user": word, "title": word})
        assert made.status_code == 201 and made.json()["session_id"] == word
        assert http.get(f"/v1/sessions/{path}").json() == made.json()
        assert [row["title"] for row in http.get("/v1/sessions", params={"user": word}).json()["items"]] == [word]
    assert db.execute("SELECT count(*) FROM agent.sessions").fetchone() == (len(words) + 1,)


def test_a_body_that_is_no_message_is_refused(http: httpx.Client, client: AgentClient) -> None:
    for body in (
        b"", b"{", b"[]", b"null", b'"x"', b"[" * 100_000, b'{"agent": "echo", "input": ' + b"9" * 10_000 + b"}",
        b'{"agent": "echo", "input": {"a": 1}}', b"\xff\xfe\x00", b'{"agent": "echo", "input": "x", "input": 3}',
    ):  # fmt: skip
        refused = http.post("/v1/sessions/s-1/messages", content=body, headers={"Content-Type": "application/json"})
        assert refused.status_code in (400, 422), body[:100]
        assert refused.headers["content-type"] == "application/problem+json"
    assert client.tasks() == []
