"""Keys: who is let in, what each key opens, and how soon a revoked one opens nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import psycopg
import pytest

from agent import keyring
from agent.client import AgentClient
from store.errors import Conflict, InvalidInput, NotFound
from tests.serving import Served, serving
from tests.workers import eventually

CALLS = ["/v1/sessions", "/v1/tasks", "/v1/agents", "/v1/workers", "/v1/notices", "/v1/dead-letters", "/v1/questions"]

SESSION_READS = ["", "/messages", "/tasks", "/notices", "/handoff", "/files", "/files/a.txt", "/effects", "/export"]
SESSION_ACTS: list[tuple[str, dict[str, object] | None]] = [
    ("/messages", {"input": "mine now", "agent": "echo"}),
    ("/pause", None),
    ("/resume", None),
    ("/close", None),
    ("/reopen", None),
    ("/fork", None),
    ("/rewind", {"to": 0}),
    ("/take-over", {"person": "ben"}),
    ("/say", {"text": "hi", "person": "ben"}),
    ("/give-back", None),
    ("/notices/1/acknowledge", None),
]
TASK_ACTS: list[tuple[str, dict[str, object] | None]] = [
    ("/approve", {"call_id": "c-1"}),
    ("/deny", {"call_id": "c-1"}),
    ("/answer", {"call_id": "c-1", "text": "yes"}),
    ("/cancel", None),
    ("/retry", None),
    ("/discard", None),
]


@pytest.fixture
def served(url: str) -> Iterator[Served]:
    with serving(url) as made:
        yield made


@pytest.fixture
def brief_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "REMEMBERED", 0.0)


@pytest.mark.usefixtures("brief_memory")
def test_from_the_first_key_on_every_call_needs_one(served: Served, client: AgentClient) -> None:
    with served.client() as anybody:
        assert anybody.get("/v1/sessions").status_code == 200
        key = client.make_key("ops")
        for path in CALLS:
            refused = anybody.get(path)
            assert refused.status_code == 401, path
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.headers["content-type"] == "application/problem+json"
        assert anybody.get("/livez").status_code == anybody.get("/readyz").status_code == 200
        assert anybody.get("/").status_code == 401 and 'name="key"' in anybody.get("/").text
    with served.client(key) as ops:
        assert {ops.get(path).status_code for path in CALLS} == {200}


@pytest.mark.usefixtures("brief_memory")
def test_a_wrong_key_opens_nothing(served: Served, client: AgentClient) -> None:
    right = client.make_key("ops")
    with served.client() as stranger:
        for given in (
            "", "Bearer", "Bearer wrong", "Bearer pdk_wrong", f"Bearer {right}x", f"Bearer {right[:-1]}",
            f"Basic {right}", right, "Basic b3BzOm9wcw==", "bearer  x", "Bearer \xff", "x" * 5000,
        ):  # fmt: skip
            refused = stranger.get("/v1/sessions", headers=[(b"Authorization", given.encode("latin-1"))])
            assert refused.status_code == 401, given


def test_the_keys_of_the_environment_open_everything(url: str) -> None:
    with serving(url, keys=("first", "second")) as made, made.client("second") as ops, made.client("third") as other:
        assert ops.post("/v1/sessions", json={"agent": "echo", "user": "ana"}).status_code == 201
        assert len(ops.get("/v1/sessions").json()["items"]) == 1
        assert other.get("/v1/sessions").status_code == 401


def test_where_others_can_reach_us_nobody_is_answered_without_a_key(url: str) -> None:
    with serving(url, is_public=True) as made, made.client() as stranger:
        assert stranger.get("/v1/sessions").status_code == 401


def test_a_revoked_key_opens_nothing_within_seconds(served: Served, client: AgentClient) -> None:
    key = client.make_key("ops")
    with served.client(key) as ops:
        eventually(lambda: ops.get("/v1/sessions").status_code == 200)
        client.revoke_key("ops")
        eventually(lambda: ops.get("/v1/sessions").status_code == 401, patience=keyring.REMEMBERED + 2)
    with served.client() as anybody:
        assert anybody.get("/v1/sessions").status_code == 401, "revoking the last key opens nothing"
        client.forget_key("ops")
        eventually(lambda: anybody.get("/v1/sessions").status_code == 200, patience=keyring.REMEMBERED + 2)


def test_a_known_key_costs_no_round_trip(served: Served, client: AgentClient, db: psycopg.Connection) -> None:
    key = client.make_key("ops")
    with served.client(key) as ops:
        eventually(lambda: ops.get("/v1/sessions").status_code == 200)
        with psycopg.connect(db.info.dsn, dbname=db.info.dbname) as holder:
            holder.execute("LOCK TABLE agent.keys IN ACCESS EXCLUSIVE MODE")
            assert ops.get("/v1/sessions", timeout=2).status_code == 200


@pytest.mark.usefixtures("brief_memory")
def test_a_read_only_key_changes_nothing(served: Served, client: AgentClient) -> None:
    key = client.make_key("viewer", read_only=True)
    task = client.enqueue("echo", "hi", session="s-1").id
    with served.client(key) as viewer:
        assert viewer.get("/v1/sessions/s-1").status_code == 200
        answers = [viewer.post(f"/v1/sessions/s-1{path}", json=body) for path, body in SESSION_ACTS]
        answers += [viewer.post(f"/v1/tasks/{task}{path}", json=body) for path, body in TASK_ACTS]
        answers.append(viewer.post("/v1/sessions", json={"agent": "echo"}))
        answers.append(viewer.patch("/v1/sessions/s-1", json={"title": "mine"}))
        answers.append(viewer.delete("/v1/sessions/s-1"))
        assert {answer.status_code for answer in answers} == {403}
    assert client.session("s-1").read().state == "running" and len(client.tasks()) == 1


@pytest.mark.usefixtures("brief_memory")
def test_another_users_session_is_not_there(served: Served, client: AgentClient, db: psycopg.Connection) -> None:
    theirs = client.enqueue("echo", "secret", session="anas", user="ana").id
    client.enqueue("echo", "nobody's", session="nobodys")
    client.enqueue("echo", "mine", session="bens", user="ben")
    db.execute("INSERT INTO agent.notices (session_id, kind, body) VALUES ('anas', 'crash', 'secret')")
    db.execute(
        "INSERT INTO agent.approvals (task_id, call_id, session_id, tool, arguments, idempotency_key)"
        " VALUES (%s, 'c-1', 'anas', 'pay', '{}', 'k')",
        (theirs,),
    )
    before = {row.session_id: row for row in client.sessions()}
    with served.client(client.make_key("ben", user="ben")) as ben:
        answers = [
            ben.get(f"/v1/sessions/{session}{path}") for session in ("anas", "nobodys") for path in SESSION_READS
        ]
        answers += [ben.post(f"/v1/sessions/anas{path}", json=body) for path, body in SESSION_ACTS]
        answers += [ben.get(f"/v1/tasks/{theirs}{path}") for path in ("", "/steps", "/questions")]
        answers += [ben.post(f"/v1/tasks/{theirs}{path}", json=body) for path, body in TASK_ACTS]
        answers += [ben.delete("/v1/sessions/anas"), ben.patch("/v1/sessions/anas", json={"title": "mine"})]
        assert {answer.status_code for answer in answers} == {404}
        assert not any("secret" in answer.text for answer in answers)
        for path in ("/v1/sessions", "/v1/tasks", "/v1/notices", "/v1/questions", "/v1/dead-letters"):
            listed = ben.get(path)
            assert listed.status_code == 200 and "anas" not in listed.text and "nobodys" not in listed.text, path
        assert [row["session_id"] for row in ben.get("/v1/sessions").json()["items"]] == ["bens"]
        assert ben.get("/v1/sessions", params={"text": "secret"}).json()["items"] == []
        for refused in (
            ben.get("/v1/sessions", params={"user": "ana"}),
            ben.get("/v1/tasks", params={"user": "ana"}),
            ben.post("/v1/sessions", json={"agent": "echo", "user": "ana"}),
            ben.post("/v1/sessions/new/messages", json={"agent": "echo", "input": "hi", "user": "ana"}),
            ben.post("/v1/sessions", json={"agent": "echo", "session_id": "anas"}),
            ben.get("/v1/workers"),
            ben.get("/v1/alerts"),
            ben.get("/v1/breakers"),
        ):
            assert refused.status_code == 403, refused.url
            assert "secret" not in refused.text
        page = ben.get("/")
        assert page.status_code == 200 and "anas" not in page.text and "secret" not in page.text
        assert ben.post("/v1/sessions", json={"agent": "echo"}).json()["user_id"] == "ben"
        assert ben.post("/v1/sessions/b-2/messages", json={"agent": "echo", "input": "hi"}).status_code == 202
        assert client.session("b-2").read().user_id == "ben"
        assert ben.post("/v1/sessions/bens/fork", json={"session_id": "anas"}).status_code == 409
    assert {row.session_id: row for row in client.sessions() if row.session_id in before} == {
        **before,
        "bens": client.session("bens").read(),
    }


@pytest.mark.usefixtures("brief_memory")
def test_anothers_idempotency_key_gives_nothing_of_theirs(served: Served, client: AgentClient) -> None:
    theirs = client.enqueue("echo", "hi", session="anas", user="ana", idempotency_key="k")
    with served.client(client.make_key("ben", user="ben")) as ben:
        sent = ben.post(
            "/v1/sessions/bens/messages", json={"agent": "echo", "input": "hi"}, headers={"Idempotency-Key": "k"}
        )
        assert sent.status_code == 202 and sent.json()["task_id"] != theirs.id


def test_only_hashes_are_kept_and_use_is_noted(served: Served, client: AgentClient, db: psycopg.Connection) -> None:
    key = client.make_key("ops")
    assert len(key) >= 43 and client.make_key("other") != key
    assert key.encode() not in b"".join(row[0] for row in db.execute("SELECT hash FROM agent.keys"))
    assert client.keys()[0].last_used_at is None
    with served.client(key) as ops:
        eventually(lambda: ops.get("/v1/agents").status_code == 200)
        used = eventually(lambda: client.keys()[0].last_used_at)
        assert used is not None
    assert "hash" not in client.keys()[0].model_dump()


def test_names_of_keys_are_told_apart(client: AgentClient) -> None:
    client.make_key("ops")
    with pytest.raises(Conflict, match="already a key"):
        client.make_key("ops")
    with pytest.raises(InvalidInput):
        client.make_key("<b>")
    with pytest.raises(InvalidInput):
        client.make_key("empty", user="")
    with pytest.raises(NotFound):
        client.revoke_key("nobody")
    with pytest.raises(NotFound):
        client.forget_key("ops")


@pytest.fixture
def signed_in(served: Served, client: AgentClient) -> Iterator[Callable[..., httpx.Client]]:
    made: list[httpx.Client] = []

    def sign_in(**scope: object) -> httpx.Client:
        key = client.make_key(f"k{len(made)}", **scope)  # type: ignore[arg-type]
        browser = served.client()
        made.append(browser)
        eventually(lambda: browser.get("/v1/agents").status_code == 401)
        answer = browser.post("/console/sign-in", data={"key": key}, headers={"Sec-Fetch-Site": "same-origin"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "Max-Age=43200" in cookie
        assert "Secure" not in cookie, "this is http on loopback"
        assert key not in cookie
        return browser

    yield sign_in
    for browser in made:
        browser.close()


def test_the_console_signs_in_with_a_key_and_out_again(
    signed_in: Callable[..., httpx.Client], client: AgentClient
) -> None:
    browser = signed_in()
    assert browser.get("/v1/sessions").status_code == 200
    assert browser.get("/").status_code == 200
    same = {"Sec-Fetch-Site": "same-origin"}
    assert browser.post("/v1/sessions", json={"agent": "echo"}, headers=same).status_code == 201
    token = browser.cookies["perdure_console"]
    assert browser.post("/console/sign-out", headers=same).status_code == 303
    browser.cookies.set("perdure_console", token)
    assert browser.get("/v1/sessions").status_code == 401, "the token is worth nothing after signing out"


def test_a_sign_in_is_worth_what_its_key_is_worth(
    signed_in: Callable[..., httpx.Client], client: AgentClient, db: psycopg.Connection
) -> None:
    browser = signed_in(read_only=True, user="ana")
    client.enqueue("echo", "hi", session="bens", user="ben")
    assert browser.get("/v1/sessions/bens").status_code == 404
    refused = browser.post("/v1/sessions", json={"agent": "echo"}, headers={"Sec-Fetch-Site": "same-origin"})
    assert refused.status_code == 403
    client.revoke_key("k0")
    eventually(lambda: browser.get("/v1/sessions").status_code == 401, patience=keyring.REMEMBERED + 2)


def test_a_sign_in_ends(signed_in: Callable[..., httpx.Client], db: psycopg.Connection) -> None:
    browser = signed_in()
    assert browser.get("/v1/sessions").status_code == 200
    db.execute("UPDATE agent.sign_ins SET expires_at = now()")
    eventually(lambda: browser.get("/v1/sessions").status_code == 401, patience=keyring.REMEMBERED + 2)


def test_behind_https_the_cookie_is_for_https_only(url: str) -> None:
    with serving(url, keys=("k",)) as made, made.client() as browser:
        answer = browser.post("/console/sign-in", json={"key": "k"}, headers={"X-Forwarded-Proto": "https"})
        assert "Secure" in answer.headers["set-cookie"]


def test_a_wrong_key_signs_nobody_in(url: str) -> None:
    with serving(url, keys=("k",)) as made, made.client() as browser:
        for body in (b"", b"key=", b"key=wrong", b'{"key": 7}', b"\xff\xfe", b"key=" + b"x" * 5000):
            for kind in ("application/x-www-form-urlencoded", "application/json"):
                answer = browser.post("/console/sign-in", content=body, headers={"Content-Type": kind})
                assert answer.status_code in (401, 422) and "set-cookie" not in answer.headers, body


def test_a_cookie_never_stands_in_for_a_wrong_key(signed_in: Callable[..., httpx.Client]) -> None:
    browser = signed_in()
    assert browser.get("/v1/sessions", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert browser.get("/v1/sessions", headers={"Authorization": "Basic x"}).status_code == 401
