"""The commands as a person types them, against a real service."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.workers import ROOT, Place, Worker, eventually

Perdure = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def perdure(place: Place) -> Perdure:
    def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "agent", *arguments],
            cwd=ROOT,
            env={**place.environment(["tests.agents:echo", "tests.agents:asks", "tests.agents:steady"]), **environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def served(hire: Callable[..., Worker]) -> Worker:
    return hire("tests.agents:echo", "tests.agents:asks", "tests.agents:steady")


@pytest.mark.usefixtures("served")
def test_sending_looking_and_following(perdure: Perdure) -> None:
    sent = perdure("send", "steady", "count", "--session", "s-1", "--user", "ana", "--wait")
    assert sent.returncode == 0, sent.stderr
    assert "count: 5 ticks" in sent.stdout
    [session] = json.loads(perdure("sessions", "--json").stdout)
    assert (session["session_id"], session["state"], session["user_id"]) == ("s-1", "idle", "ana")
    [task] = json.loads(perdure("tasks", "--json").stdout)
    assert (task["status"], task["steps"], task["output"]) == ("done", 11, "count: 5 ticks")
    steps = json.loads(perdure("steps", task["task_id"], "--json").stdout)
    assert [step["input"]["n"] for step in steps if step["kind"] == "tool"] == [0, 1, 2, 3, 4]
    for words in (["sessions"], ["tasks"], ["steps", task["task_id"]], ["show", "s-1"], ["tail", "s-1", "--no-follow"]):
        seen = perdure(*words)
        assert seen.returncode == 0, seen.stderr
        assert "\x1b[" not in seen.stdout, "colour only on a terminal"
    assert task["task_id"] in perdure("tasks").stdout
    shown = perdure("show", "s-1").stdout
    assert "you    count" in shown
    assert "agent  count: 5 ticks" in shown
    kinds = [json.loads(line)["kind"] for line in perdure("tail", "s-1", "--no-follow", "--json").stdout.splitlines()]
    assert kinds[0] == "task.accepted"
    assert kinds[-1] == "task.finished"


@pytest.mark.usefixtures("served")
def test_approving_from_the_command_line(perdure: Perdure) -> None:
    perdure("send", "asks", "erase it", "--session", "s-1")
    shown = eventually(lambda: (text := perdure("show", "s-1").stdout) and "waits for you" in text and text)
    command = re.search(r"perdure (approve \S+ \S+)", shown)
    assert command is not None
    approved = perdure(*command[1].split())
    assert "goes on" in approved.stdout
    eventually(lambda: "agent  erase: erased" in perdure("show", "s-1").stdout)


@pytest.mark.usefixtures("served")
def test_the_doctor_finds_nothing_wrong(perdure: Perdure) -> None:
    looked = perdure("doctor")
    assert looked.returncode == 0, looked.stdout + looked.stderr
    assert "1 alive" in looked.stdout


def test_the_doctor_says_what_to_do(perdure: Perdure, served: Worker) -> None:
    served.kill()
    perdure("send", "echo", "hi")
    looked = perdure("doctor")
    assert looked.returncode == 1
    assert "none is alive, and 1 tasks are queued" in looked.stdout
    assert "→ perdure start" in looked.stdout
    unreachable = perdure("doctor", PERDURE_DATABASE_URL="postgresql://x@127.0.0.1:9/x")
    assert unreachable.returncode == 1
    assert "Postgres cannot be reached" in unreachable.stdout


@pytest.mark.parametrize(
    ("words", "environment", "says"),
    [
        (["send", "nobody", "hi"], {}, "there is no agent named 'nobody'"),
        (["show", "nowhere"], {}, "there is no session 'nowhere'"),
        (["steps", "nothing"], {}, "there is no task 'nothing'"),
        (["approve", "a", "b"], {}, "task 'a' asks nothing about call 'b'"),
        (["sessions"], {"PERDURE_DATABASE_URL": "postgresql://x@127.0.0.1:9/x"}, "Postgres cannot be reached"),
        (["start"], {"PERDURE_PORT": "many"}, "PERDURE_PORT is 'many'"),
        (["start"], {"PERDURE_AGENTS": "nope:nope"}, "There is no module 'nope'"),
        (["worker"], {"PERDURE_DATABASE_URL": "postgresql://x@127.0.0.1:9/x"}, "Postgres cannot be reached"),
        (["start"], {"PERDURE_HOST": "0.0.0.0"}, "set PERDURE_API_KEYS"),
    ],
)
@pytest.mark.usefixtures("served")
def test_an_error_is_one_sentence_and_the_next_thing_to_try(
    perdure: Perdure, words: list[str], environment: dict[str, str], says: str
) -> None:
    failed = perdure(*words, **environment)
    assert failed.returncode == 1
    assert failed.stdout == ""
    first, second = failed.stderr.strip().splitlines()
    assert first.startswith("perdure: ")
    assert says in first
    assert second.startswith("Try: ")


def test_a_port_that_is_taken_is_named(perdure: Perdure, served: Worker) -> None:
    port = served.address.rsplit(":", 1)[1]
    failed = perdure("worker", PERDURE_PORT=port)
    assert failed.returncode == 1
    assert f"PERDURE_PORT is {port}" in failed.stderr


def test_chat_answers_at_once_where_nothing_runs_yet(perdure: Perdure, tmp_path: Path) -> None:
    fresh = {"PERDURE_DATABASE_URL": "", "PERDURE_HOME": str(tmp_path / "fresh"), "PERDURE_AGENTS": ""}
    first = perdure("chat", stdin="hello\n", **fresh)
    assert first.returncode == 0, first.stderr
    assert "You said: “hello”" in first.stdout
    session = re.search(r"perdure chat (\S+)", first.stdout)
    assert session is not None
    again = perdure("chat", session[1], stdin="and again\n", **fresh)
    assert "That is message 2 of our conversation" in again.stdout
    assert not (tmp_path / "fresh" / "postgres" / "postmaster.pid").exists()


def test_the_demo_tells_its_story(perdure: Perdure) -> None:
    told = perdure("demo", PERDURE_DEMO_PACE="0.1")
    assert told.returncode == 0, told.stdout + told.stderr
    for words in ("kill -9", "worker.died", "effect.doubted", "checked: it had happened", "published 1 time"):
        assert words in told.stdout
    assert "16 steps, each recorded once; 14 survived the kill; 0 ran again" in told.stdout


def test_health_calls(served: Worker) -> None:
    assert httpx.get(f"http://{served.address}/livez").json() == {"status": "alive"}
    ready = httpx.get(f"http://{served.address}/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")


@pytest.fixture
def started(place: Place, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """The service as `run.py start` or `dbos start` runs it."""
    with (place.folder / "service.log").open("w") as log:
        service = subprocess.Popen(
            request.param, cwd=ROOT, env=place.environment(["tests.agents:gate"]), stdout=subprocess.PIPE, stderr=log,
            text=True, start_new_session=True,
        )  # fmt: skip
    yield service
    for left in orphans_of(place):
        left.kill()
    service.wait()
    assert service.stdout is not None
    service.stdout.close()


def orphans_of(place: Place) -> list[psutil.Process]:
    """Processes of this test that its own children left behind: `dbos start` does not wait for the service."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TEST_WORLD") == str(place.folder):
                found.append(process)
    return found


@pytest.mark.parametrize("started", [[sys.executable, "run.py", "start"]], indirect=True)
def test_run_py_start_serves_and_stops_as_planned(started: subprocess.Popen[str], place: Place) -> None:
    address = ready_address(started)
    assert httpx.get(f"{address}/readyz").status_code == 200
    page = httpx.get(address)
    assert page.status_code == 200
    assert "Nothing here yet" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    started.send_signal(signal.SIGTERM)
    assert started.wait(30) == 0
    assert "stopped as planned" in (place.folder / "service.log").read_text()


@pytest.mark.parametrize("started", [["dbos", "start"]], indirect=True)
def test_dbos_start_serves(started: subprocess.Popen[str], place: Place) -> None:
    address = ready_address(started)
    assert httpx.get(f"{address}/readyz").status_code == 200
    started.send_signal(signal.SIGTERM)
    started.wait(30)
    eventually(lambda: "stopped as planned" in (place.folder / "service.log").read_text())


@pytest.mark.parametrize("started", [[sys.executable, "run.py", "start"]], indirect=True)
def test_text_of_users_is_never_html(started: subprocess.Popen[str], place: Place, client) -> None:  # type: ignore[no-untyped-def]
    address = ready_address(started)
    client.enqueue("gate", "<script>alert(1)</script>", session="<img src=x>")
    text = httpx.get(address).text
    assert "<script>" not in text
    assert "<img" not in text
    assert "&lt;script&gt;" in text


def test_with_keys_the_console_needs_one_and_without_only_this_machine_is_served(
    place: Place, started_with: Callable[..., subprocess.Popen[str]]
) -> None:
    guarded = ready_address(started_with(PERDURE_API_KEYS="first,second"))
    assert httpx.get(guarded).status_code == 401
    assert httpx.get(guarded, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert httpx.get(guarded, headers={"Authorization": "Bearer second"}).status_code == 200
    assert httpx.get(f"{guarded}/readyz").status_code == 200
    simple = ready_address(started_with())
    assert httpx.get(simple).status_code == 200
    assert httpx.get(simple, headers={"Host": "evil.example"}).status_code == 400


@pytest.fixture
def started_with(place: Place) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    services: list[subprocess.Popen[str]] = []

    def start(**environment: str) -> subprocess.Popen[str]:
        services.append(
            subprocess.Popen(
                [sys.executable, "-m", "agent", "start"],
                cwd=ROOT,
                env={**place.environment(["tests.agents:echo"]), **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        return services[-1]

    yield start
    for service in services:
        service.kill()
        service.wait()
        assert service.stdout is not None
        service.stdout.close()


@pytest.mark.usefixtures("served")
def test_what_users_write_cannot_command_the_terminal(perdure: Perdure) -> None:
    perdure("send", "echo", "\x1b]0;owned\x07 hi", "--session", "[/x]", "--wait")
    for words in (["tasks"], ["sessions"], ["show", "[/x]"], ["tail", "[/x]", "--no-follow"]):
        seen = perdure(*words)
        assert seen.returncode == 0, seen.stderr
        assert "\x1b" not in seen.stdout


def ready_address(service: subprocess.Popen[str]) -> str:
    assert service.stdout is not None
    for line in service.stdout:
        found = re.search(r"http://\S+", line)
        if found:
            return found[0]
    raise AssertionError("the service never became ready")


@pytest.mark.usefixtures("served")
def test_sessions_are_governed_from_the_command_line(perdure: Perdure, tmp_path: Path) -> None:
    def done(*words: str, stdin: str = "") -> str:
        ended = perdure(*words, stdin=stdin)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    done("send", "echo", "one", "--session", "s-1", "--wait")
    place = json.loads(done("tail", "s-1", "--no-follow", "--json").splitlines()[-1])["seq"]
    done("send", "steady", "count", "--session", "s-2", "--wait")
    done("send", "echo", "two", "--session", "s-1", "--wait")
    assert done("fork", "s-1", "--at", str(place), "--session", "branch") == "branch"
    done("send", "echo", "three", "--session", "branch", "--wait")
    parted = done("diff", "s-1", "branch")
    assert "2 messages are the same" in parted and "two" in parted and "three" in parted
    done("rewind", "s-1", "--to", str(place))
    assert "two" not in done("show", "s-1")
    refused = perdure("rewind", "s-2", "--to", "1", stdin="n\n")
    assert refused.returncode == 1 and "These happened outside" in refused.stdout and "tick" in refused.stdout
    done("pause", "branch")
    queued = done("send", "echo", "four", "--session", "branch").split()[1]
    assert json.loads(done("tasks", "--status", "queued", "--json"))[0]["task_id"] == queued
    assert "cancelled" in done("cancel", queued)
    done("take-over", "branch", "--as", "ana")
    done("say", "branch", "I am Ana.", "--as", "ana")
    done("give-back", "branch", "--note", "all is well")
    assert "I am Ana." in done("show", "branch")
    (tmp_path / "session.json").write_text(done("export", "branch"))
    assert done("import", str(tmp_path / "session.json"), "--session", "copy") == "copy"
    assert {row["session_id"] for row in json.loads(done("sessions", "--text", "I am Ana.", "--json"))} == {
        "branch",
        "copy",
    }
    done("close", "copy")
    assert "is closed" in perdure("send", "echo", "more", "--session", "copy").stderr
    done("delete", "copy", "--yes")
    assert "there is no session 'copy'" in perdure("show", "copy").stderr
