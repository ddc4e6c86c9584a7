"""Every call of the contract over HTTP, against a real server and a real Postgres."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import psycopg
import pytest

from agent.client import AgentClient
from tests.serving import Served, serving


@pytest.fixture
def served(url: str) -> Iterator[Served]:
    with serving(url) as made:
        yield made


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client() as made:
        yield made


def test_a_session_is_made_once(http: httpx.Client) -> None:
    made = http.post("/v1/sessions", json={"agent": "echo", "session_id": "acme-17", "user": "ana", "title": "Orders"})
    assert made.status_code == 201, made.text
    assert (made.json()["state"], made.json()["user_id"], made.json()["title"]) == ("idle", "ana", "Orders")
    again = http.post("/v1/sessions", json={"agent": "echo", "session_id": "acme-17", "user": "ana"})
    assert (again.status_code, again.json()["title"]) == (200, "Orders")
    other = http.post("/v1/sessions", json={"agent": "gate", "session_id": "acme-17", "user": "ana"})
    assert other.status_code == 409
    keyed = [http.post("/v1/sessions", json={"agent": "echo"}, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert [each.status_code for each in keyed] == [201, 200]
    assert keyed[0].json()["session_id"] == keyed[1].json()["session_id"]
    assert http.post("/v1/sessions", json={"agent": "echo"}).json()["session_id"] != keyed[0].json()["session_id"]
    assert http.get("/v1/sessions/acme-17").json() == again.json()


def test_a_message_is_accepted_once_per_key(http: httpx.Client, client: AgentClient) -> None:
    key = {"Idempotency-Key": "mail-8812"}
    sent = http.post("/v1/sessions/s-1/messages", json={"agent": "echo", "input": "hello", "user": "ana"}, headers=key)
    assert sent.status_code == 202, sent.text
    task = sent.json()
    assert set(task) == {"task_id", "session_id", "status"} and task["status"] == "queued"
    assert client.task(task["task_id"]).read().input == "hello"
    again = http.post("/v1/sessions/s-1/messages", json={"input": "hello"}, headers=key)
    assert again.json() == task, "agent and user are the session's own"
    assert http.post("/v1/sessions/s-1/messages", json={"input": "other"}, headers=key).status_code == 409
    elsewhere = {"agent": "echo", "input": "hello", "user": "ana"}
    assert http.post("/v1/sessions/s-2/messages", json=elsewhere, headers=key).status_code == 409
    assert len(client.tasks()) == 1
    assert http.get("/v1/sessions/s-1").json()["title"] == "hello"


def test_a_session_without_a_title_is_called_after_its_first_message(http: httpx.Client) -> None:
    http.post("/v1/sessions", json={"agent": "echo", "session_id": "s-1"})
    http.post("/v1/sessions/s-1/messages", json={"input": " what  is\nit "})
    http.post("/v1/sessions/s-1/messages", json={"input": "more"})
    assert http.get("/v1/sessions/s-1").json()["title"] == "what is it"
    assert http.patch("/v1/sessions/s-1", json={"title": "Questions"}).json()["title"] == "Questions"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"input": "hi"}, 404),
        ({"agent": "nobody", "input": "hi"}, 404),
        ({"agent": "echo", "input": ""}, 422),
        ({"agent": "echo", "input": " \n"}, 422),
        ({"agent": "echo", "input": "a\0b"}, 422),
        ({"agent": "echo", "input": "x" * 1_048_577}, 413),
        ({"agent": "echo", "input": "hi", "when_busy": "never"}, 422),
        ({"agent": "echo", "input": "hi", "usr": "ana"}, 422),
    ],
)
def test_what_is_refused_is_a_problem_and_leaves_nothing(
    http: httpx.Client, client: AgentClient, body: dict[str, str], status: int
) -> None:
    refused = http.post("/v1/sessions/s-1/messages", json=body)
    assert refused.status_code == status
    problem = refused.json()
    assert refused.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail", "instance", "request_id"} <= set(problem)
    assert problem["status"] == status and problem["instance"] == "/v1/sessions/s-1/messages"
    assert problem["request_id"] == refused.headers["x-request-id"]
    assert client.sessions() == [] and client.tasks() == []


def test_the_largest_input_is_accepted_however_it_is_written(http: httpx.Client) -> None:
    largest = "ä" * (1_048_576 // 2)
    sent = http.post("/v1/sessions/s-1/messages", json={"agent": "echo", "input": largest})
    assert sent.status_code == 202, sent.text
    escaped = '{"agent": "echo", "input": "' + "\\u0061" * 1_048_576 + '"}'
    sent = http.post("/v1/sessions/s-2/messages", content=escaped, headers={"Content-Type": "application/json"})
    assert sent.status_code == 202, sent.text


def test_a_session_is_governed(http: httpx.Client, client: AgentClient) -> None:
    client.enqueue("echo", "one", session="s-1")
    assert http.post("/v1/sessions/s-1/pause").json()["state"] == "paused"
    assert http.post("/v1/sessions/s-1/resume").json()["state"] == "running"
    assert http.post("/v1/sessions/s-1/close").status_code == 409
    task = http.get("/v1/sessions/s-1/tasks").json()["items"][0]["task_id"]
    cancelled = http.post(f"/v1/tasks/{task}/cancel", json={"reason": "no need"})
    assert (cancelled.status_code, cancelled.json()["status"], cancelled.json()["error"]) == (
        202,
        "cancelled",
        "no need",
    )
    assert http.post("/v1/sessions/s-1/close").json()["state"] == "closed"
    assert http.post("/v1/sessions/s-1/messages", json={"input": "more"}).status_code == 409
    assert http.post("/v1/sessions/s-1/reopen").json()["state"] == "idle"
    forked = http.post("/v1/sessions/s-1/fork", json={"at": 1, "session_id": "branch", "title": "B"})
    assert (forked.status_code, forked.json()["parent_session_id"]) == (201, "s-1")
    assert http.post("/v1/sessions/s-1/fork").status_code == 201
    assert http.get("/v1/sessions/s-1/effects", params={"after": 1}).json() == []
    assert http.post("/v1/sessions/s-1/rewind", json={"to": 1}).status_code == 200
    assert http.post("/v1/sessions/s-1/rewind", json={"to": 10**6}).status_code == 422
    assert http.delete("/v1/sessions/s-1").status_code == 409, "its forks need it"
    assert http.delete("/v1/sessions/branch").status_code == 204
    assert http.get("/v1/sessions/branch").status_code == 404


def test_a_person_takes_over_speaks_and_gives_back(http: httpx.Client, client: AgentClient) -> None:
    http.post("/v1/sessions", json={"agent": "echo", "session_id": "s-1"})
    assert http.post("/v1/sessions/s-1/say", json={"text": "hi", "person": "ben"}).status_code == 409
    assert http.post("/v1/sessions/s-1/take-over", json={"person": "ben"}).json()["state"] == "paused"
    said = http.post("/v1/sessions/s-1/say", json={"text": "I am Ben.", "person": "ben"})
    assert (said.status_code, said.json()["status"]) == (202, "done")
    assert http.post("/v1/sessions/s-1/give-back", json={"note": "all is well"}).json()["state"] == "idle"
    [message] = http.get("/v1/sessions/s-1/messages").json()["items"]
    assert message["message"]["parts"][0]["content"] == "I am Ben."
    exported = http.get("/v1/sessions/s-1/export").json()
    client.import_session(exported, session="copy")
    assert len(http.get("/v1/sessions/copy/messages").json()["items"]) == 1


def ask(db: psycopg.Connection, client: AgentClient, session: str, user: str | None = None) -> str:
    """A task that waits for two answers."""
    task = client.enqueue("gate", "open it", session=session, user=user).id
    db.execute("UPDATE agent.tasks SET outcome = 'waiting', finished_at = now() WHERE task_id = %s", (task,))
    db.execute("UPDATE dbos.workflow_status SET status = 'SUCCESS' WHERE workflow_uuid = %s", (task,))
    for call, kind in (("c-1", "approval"), ("c-2", "question")):
        db.execute(
            "INSERT INTO agent.approvals (task_id, call_id, session_id, tool, arguments, idempotency_key, kind)"
            " VALUES (%s, %s, %s, 'open_gate', '{}', %s, %s)",
            (task, call, session, f"{task}{call}", kind),
        )
    return task


def test_calls_are_decided(http: httpx.Client, client: AgentClient, db: psycopg.Connection) -> None:
    task = ask(db, client, "s-1")
    asked = http.get("/v1/questions").json()["items"]
    assert [row["call_id"] for row in asked] == ["c-1", "c-2"]
    assert http.get(f"/v1/tasks/{task}/questions").json() == asked
    assert http.get(f"/v1/tasks/{task}").json()["status"] == "waiting"
    bad = http.post(
        f"/v1/tasks/{task}/approve",
        content='{"call_id": "c-1", "arguments": {"x": NaN}}',
        headers={"Content-Type": "application/json"},
    )
    assert bad.status_code == 422
    approved = http.post(f"/v1/tasks/{task}/approve", json={"call_id": "c-1", "arguments": {"wide": True}}).json()
    assert approved == {"task_id": task, "call_id": "c-1", "decision": "approved", "next_task_id": None}
    assert http.post(f"/v1/tasks/{task}/deny", json={"call_id": "c-1"}).status_code == 409
    answered = http.post(f"/v1/tasks/{task}/answer", json={"call_id": "c-2", "text": "yes"}).json()
    assert http.get(f"/v1/tasks/{answered['next_task_id']}").json()["kind"] == "continuation"
    assert http.post(f"/v1/tasks/{task}/approve", json={"call_id": "c-9"}).status_code == 404


def test_dead_letters_are_listed_retried_and_discarded(
    http: httpx.Client, client: AgentClient, db: psycopg.Connection
) -> None:
    tasks = [client.enqueue("echo", f"n {number}", session=f"s-{number}").id for number in range(3)]
    for task in tasks:
        db.execute("SELECT agent.bury(%s, 'it crashed', '{}')", (task,))
    first = http.get("/v1/dead-letters", params={"limit": 2}).json()
    rest = http.get("/v1/dead-letters", params={"limit": 2, "cursor": first["next"]}).json()
    assert [row["task_id"] for row in first["items"] + rest["items"]] == tasks[::-1]
    assert http.post(f"/v1/tasks/{tasks[0]}/retry").json()["status"] == "queued"
    replaced = http.post(f"/v1/tasks/{tasks[1]}/retry", json={"input": "other words"}).json()
    assert replaced["task_id"] != tasks[1] and replaced["input"] == "other words"
    assert http.post(f"/v1/tasks/{tasks[2]}/discard", json={"reason": "old"}).json()["status"] == "cancelled"
    assert http.post(f"/v1/tasks/{tasks[2]}/discard").status_code == 409
    assert http.get("/v1/dead-letters").json() == {"items": [], "next": None}


def test_notices_are_read_and_answered(http: httpx.Client, client: AgentClient, db: psycopg.Connection) -> None:
    client.enqueue("echo", "hi", session="s-1", user="ana")
    for body in ("first", "second"):
        db.execute("INSERT INTO agent.notices (session_id, kind, body) VALUES ('s-1', 'crash', %s)", (body,))
    page = http.get("/v1/sessions/s-1/notices", params={"limit": 1}).json()
    rest = http.get("/v1/sessions/s-1/notices", params={"cursor": page["next"]}).json()
    assert [row["body"] for row in page["items"] + rest["items"]] == ["first", "second"]
    number = page["items"][0]["notice_id"]
    told = http.post(f"/v1/sessions/s-1/notices/{number}/acknowledge", json={"correction": "It was blue."})
    assert (told.status_code, told.json()["correction"]) == (200, "It was blue.")
    assert http.post("/v1/sessions/s-1/notices/999999/acknowledge").status_code == 404
    assert len(http.get("/v1/notices").json()["items"]) == 2
    assert http.get("/v1/sessions/s-1/handoff").status_code == 404


def test_files_are_listed_and_come_as_bytes_to_keep(
    http: httpx.Client, client: AgentClient, db: psycopg.Connection
) -> None:
    import hashlib

    from store.files import packed

    client.enqueue("echo", "hi", session="s-1")
    for path in ("notes/<script>.html", "a.txt"):
        content = path.encode()
        digest = hashlib.sha256(content).digest()
        db.execute(
            "INSERT INTO agent.blobs (sha256, size, data) VALUES (%s, %s, %s)", (digest, len(content), packed(content))
        )
        db.execute(
            "INSERT INTO agent.files (session_id, path, seq, sha256, size) VALUES ('s-1', %s, 1, %s, %s)",
            (path, digest, len(content)),
        )
    page = http.get("/v1/sessions/s-1/files", params={"limit": 1}).json()
    rest = http.get("/v1/sessions/s-1/files", params={"cursor": page["next"]}).json()
    assert [row["path"] for row in page["items"] + rest["items"]] == ["a.txt", "notes/<script>.html"]
    assert page["items"][0]["sha256"] == hashlib.sha256(b"a.txt").hexdigest()
    file = http.get("/v1/sessions/s-1/files/notes/%3Cscript%3E.html")
    assert file.content == b"notes/<script>.html"
    assert file.headers["content-type"] == "application/octet-stream"
    assert file.headers["content-disposition"] == "attachment; filename*=UTF-8''%3Cscript%3E.html"
    assert http.get("/v1/sessions/s-1/files/..%2F..%2Fetc%2Fpasswd").status_code == 404


def test_the_house_is_seen(http: httpx.Client, db: psycopg.Connection) -> None:
    assert [row["name"] for row in http.get("/v1/agents").json()["items"]] == ["echo", "gate"]
    db.execute(
        "INSERT INTO agent.workers (worker_id, host, pid, process, version, beat_seconds)"
        " VALUES ('w', 'h', 1, 'p', 'v', 5)"
    )
    assert [row["worker_id"] for row in http.get("/v1/workers").json()["items"]] == ["w"]
    assert http.get("/v1/alerts").json() == [] and http.get("/v1/breakers").json() == []
    assert http.get("/livez").json() == {"status": "alive"}
    assert http.get("/readyz").json() == {"status": "ready"}


@pytest.mark.parametrize("order", ["activity", "birth"])
def test_pages_are_stable_while_sessions_are_added(http: httpx.Client, client: AgentClient, order: str) -> None:
    before = {f"s-{number}" for number in range(7)}
    for session in sorted(before):
        client.enqueue("echo", "hi", session=session)
    seen: list[str] = []
    cursor = None
    while True:
        params = {"limit": 2, "order": order, **({"cursor": cursor} if cursor else {})}
        page = http.get("/v1/sessions", params=params).json()
        seen += [row["session_id"] for row in page["items"]]
        client.enqueue("echo", "hi", session=f"new-{len(seen)}")
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == sorted(before, reverse=True)


def test_tasks_messages_and_steps_come_by_the_page(
    http: httpx.Client, client: AgentClient, db: psycopg.Connection
) -> None:
    tasks = [client.enqueue("echo", f"n {number}", session="s-1").id for number in range(3)]
    first = http.get("/v1/tasks", params={"limit": 2}).json()
    rest = http.get("/v1/tasks", params={"limit": 2, "cursor": first["next"]}).json()
    assert [row["task_id"] for row in first["items"] + rest["items"]] == tasks[::-1]
    for position in range(1, 4):
        db.execute("INSERT INTO agent.messages VALUES ('s-1', %s, %s, '{\"n\": 1}', 1)", (position, tasks[0]))
        db.execute(
            "INSERT INTO dbos.operation_outputs (workflow_uuid, function_id, function_name, output)"
            " VALUES (%s, %s, 'tool.x', '{\"outcome\": \"returned\"}')",
            (tasks[0], position),
        )
    for path, name in (("/v1/sessions/s-1/messages", "position"), (f"/v1/tasks/{tasks[0]}/steps", "step")):
        first = http.get(path, params={"limit": 2}).json()
        rest = http.get(path, params={"limit": 2, "cursor": first["next"]}).json()
        assert [row[name] for row in first["items"] + rest["items"]] == [1, 2, 3]
        assert rest["next"] is None


def test_a_cursor_is_of_its_own_listing_or_refused(http: httpx.Client, client: AgentClient) -> None:
    for number in range(2):
        client.enqueue("echo", "hi", session=f"s-{number}")
    cursor = http.get("/v1/sessions", params={"limit": 1}).json()["next"]
    assert http.get("/v1/sessions", params={"cursor": cursor}).status_code == 200
    for path, given in (
        ("/v1/tasks", cursor),
        ("/v1/agents", cursor),
        ("/v1/sessions", cursor[:-4]),
        ("/v1/sessions", "%00"),
        ("/v1/sessions", "ä"),
        ("/v1/sessions", "eyJh"),
    ):
        refused = http.get(path, params={"cursor": given})
        assert refused.status_code == 422, (path, given)
        assert "cursor" in refused.json()["detail"]
    assert http.get("/v1/sessions", params={"cursor": cursor, "order": "birth"}).status_code == 422


def test_an_id_may_hold_a_slash(http: httpx.Client, client: AgentClient) -> None:
    client.enqueue("echo", "hi", session="tenant/17")
    assert http.get("/v1/sessions/tenant%2F17").json()["session_id"] == "tenant/17"
    assert http.get("/v1/sessions/tenant%2f17/messages").status_code == 200
    assert http.get("/v1/sessions/tenant/17").status_code == 404


def test_unknown_paths_and_methods_are_problems(http: httpx.Client) -> None:
    nowhere = http.get("/v1/nothing")
    assert (nowhere.status_code, nowhere.headers["content-type"]) == (404, "application/problem+json")
    refused = http.put("/v1/sessions")
    assert (refused.status_code, refused.headers["content-type"]) == (405, "application/problem+json")
    assert refused.headers["allow"] == "GET, POST"
    assert refused.json()["request_id"] == refused.headers["x-request-id"]


def test_what_nobody_expected_is_a_problem_too(
    http: httpx.Client, db: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    db.execute("ALTER TABLE agent.workers RENAME TO gone")
    broken = http.get("/v1/workers", headers={"X-Request-Id": "mine-1"})
    assert broken.status_code == 500
    assert broken.headers["content-type"] == "application/problem+json"
    assert broken.json()["request_id"] == broken.headers["x-request-id"] == "mine-1"
    assert "gone" not in broken.text and "relation" not in broken.text
    assert broken.headers["content-security-policy"]


def test_the_description_is_complete(http: httpx.Client) -> None:
    schema = http.get("/openapi.json").json()
    offered = {f"{method.upper()} {path}" for path, operations in schema["paths"].items() for method in operations}
    session, task = "/v1/sessions/{session_id}", "/v1/tasks/{task_id}"
    reads = ("", "/messages", "/handoff", "/notices", "/files")
    acts = ("/messages", "/pause", "/resume", "/fork", "/rewind", "/notices/{notice_id}/acknowledge")
    decisions = ("/approve", "/deny", "/cancel", "/retry", "/discard")
    contract = {
        "POST /v1/sessions",
        "GET /v1/sessions",
        f"GET {task}",
        f"GET {task}/steps",
        "GET /livez",
        "GET /readyz",
    }
    contract |= {f"GET {session}{each}" for each in reads} | {f"POST {session}{each}" for each in acts}
    contract |= {f"POST {task}{each}" for each in decisions}
    assert contract <= offered
    ids = [operation["operationId"] for paths in schema["paths"].values() for operation in paths.values()]
    assert len(ids) == len(set(ids)) and "send_message" in ids
    for operations in schema["paths"].values():
        for operation in operations.values():
            assert operation.get("description") and operation.get("tags")
            assert "application/problem+json" in operation["responses"]["default"]["content"]
