"""Many sessions of one agent, apart from each other, across machines, branches and their end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from agent.client import AgentClient
from store.errors import InvalidInput
from tests.workers import Place, Worker, eventually

Hire = Callable[..., Worker]
AGENT = "tests.filing:archivist"
SESSIONS = 200


def test_two_hundred_sessions_in_parallel_never_see_each_others_words(
    client: AgentClient, place: Place, hire: Hire
) -> None:
    for _ in range(2):
        hire(AGENT)
    with psycopg.connect(place.url) as connection:
        for number in range(SESSIONS):
            client.enqueue("archivist", f"remember secret-{number}", session=f"s-{number}", connection=connection)
    recalled = [client.enqueue("archivist", "recall", session=f"s-{number}") for number in range(SESSIONS)]
    for number, task in enumerate(recalled):
        assert words_in(task.result(timeout=120)) == {f"secret-{number}"}
    for line in place.world("sent"):
        own = {line["session"].replace("s-", "secret-")}
        assert words_in(" ".join(line["said"])) <= own, "no model sees another session's word"
    folders = [path for path in (place.folder / "workspaces").iterdir() if (path / "word.txt").exists()]
    assert len(folders) == SESSIONS
    assert len({(path / "word.txt").read_text() for path in folders}) == SESSIONS
    assert client.session("s-7").search("secret-7") and client.session("s-7").search("secret-8") == []
    assert {row.session_id for row in client.sessions(text="secret-199")} == {"s-199"}
    workers = {row.worker_id for row in client.tasks(limit=1000)}
    assert len(workers) == 2, "both worked"


def words_in(text: str) -> set[str]:
    return set(re.findall(r"secret-\d+", text))


@pytest.fixture
def later_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """From here on, processes are of another version of Perdure; where they find the agent of that release."""

    def install() -> str:
        described = tmp_path / "release" / "perdure-99.0.dist-info" / "METADATA"
        described.parent.mkdir(parents=True)
        described.write_text("Metadata-Version: 2.1\nName: perdure\nVersion: 99.0\n")
        monkeypatch.setenv("TEST_RELEASE_PATH", str(tmp_path / "release"))
        return "tests.later:archivist"

    return install


@pytest.mark.parametrize("decision", ["approve", "deny", "expire"])
def test_a_waiting_task_goes_on_in_a_later_release_on_an_empty_machine_with_its_files(
    client: AgentClient,
    place: Place,
    db: psycopg.Connection,
    hire: Hire,
    tmp_path: Path,
    later_release: Callable[[], str],
    decision: str,
) -> None:
    first = hire(AGENT)
    client.enqueue("archivist", "remember secret-1", session="s-1").result(timeout=30)
    task = client.enqueue("archivist", "burn it", session="s-1")
    assert task.settled_status(timeout=30) == "waiting"
    assert client.enqueue("archivist", "hello", session="s-1").result(timeout=30) == "heard hello", "it stays reachable"
    assert first.stop() == 0
    (tmp_path / "elsewhere").mkdir()
    hire(later_release(), home=tmp_path / "elsewhere")
    newest, oldest = client.workers()
    assert newest.version == "99.0" != oldest.version and oldest.state == "stopped"
    [question] = task.questions()
    match decision:
        case "approve":
            client.approve(task.id, question.call_id)
        case "deny":
            client.deny(task.id, question.call_id, reason="not today")
        case _:
            db.execute("UPDATE agent.approvals SET expires_at = now()")
    answer = str(task.result(timeout=30))
    burned, told = {
        "approve": (1, "burned | "),
        "deny": (0, "not today | "),
        "expire": (0, "Nobody approved this call: nobody answered in time. | "),
    }[decision]
    assert [line["thoroughly"] for line in place.world("world")] == [True] * burned, "by the code of the later release"
    [*_, told_later] = place.world("later")
    assert told_later["instructions"] == "You keep the archive, and you keep it dry."
    assert "dampness" in told_later["tools"]
    assert answer.startswith(told) and "secret-1" in answer, "with the files as they were"


def test_a_fork_has_the_files_of_its_place_and_its_own_from_there(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    hire(AGENT)
    client.enqueue("archivist", "remember secret-1", session="stem").result(timeout=30)
    place = client.session("stem").events()[-1].seq
    client.enqueue("archivist", "remember secret-2", session="stem").result(timeout=30)
    client.fork("stem", at=place, session="branch")

    def recall(session: str) -> set[str]:
        return words_in(str(client.enqueue("archivist", "recall", session=session).result(timeout=30)))

    assert (recall("branch"), recall("stem")) == ({"secret-1"}, {"secret-2"})
    client.enqueue("archivist", "remember secret-3", session="branch").result(timeout=30)
    assert (recall("branch"), recall("stem")) == ({"secret-3"}, {"secret-2"})
    copy = client.import_session(json.loads(json.dumps(client.export_session("branch"))), session="copy")
    assert recall("copy") == {"secret-3"}, "files travel too"
    forged = client.export_session("branch")
    forged["files"][0]["sha256"] = "00" * 32
    with pytest.raises(InvalidInput, match="not what it says"):
        client.import_session(forged, session="forged")
    client.delete_session(copy.id)
    client.rewind("stem", to=place)
    assert recall("stem") == {"secret-1"}
    assert db.execute("SELECT count(*) FROM agent.blobs").fetchall() == [(3,)]
    client.delete_session("branch")
    assert db.execute("SELECT count(*) FROM agent.blobs").fetchall() == [(2,)], "only what only it used is gone"
    client.delete_session("stem")
    for table in ("blobs", "files", "messages", "journal", "tasks", "lineage", "checkpoint_versions"):
        assert db.execute(f"SELECT count(*) FROM agent.{table}").fetchall() == [(0,)], table
    left = "SELECT count(*) FROM dbos.workflow_status WHERE name = 'run_task'"
    eventually(lambda: db.execute(left).fetchall() == [(0,)])
