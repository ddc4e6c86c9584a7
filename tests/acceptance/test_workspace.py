"""The files of a session are what its manifest says, whatever dies, and on whichever machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from agent.client import AgentClient, Task
from agent.folder import folder_name
from store.errors import InvalidInput, TaskFailed
from store.files import unpacked
from tests.filing import big
from tests.workers import Place, Worker, eventually

Hire = Callable[..., Worker]
AGENT = "tests.filing:filing"
MOMENTS = [
    "before the transaction",
    "after the transaction",
    "half of the file",
    "before fsync",
    "before rename",
    "after rename",
]
WIDE = 100_000_000
"""A window in which files of megabytes fit."""


def ask(client: AgentClient, session: str, *calls: tuple[str, dict[str, Any]], agent: str = "filing") -> Task:
    return client.enqueue(agent, json.dumps(calls), session=session)


def answers(task: Task) -> list[str]:
    return json.loads(task.result(timeout=60))


def write(path: str, content: object) -> tuple[str, dict[str, Any]]:
    return "write_file", {"path": path, "content": content}


def files_in(home: Path, session: str) -> dict[str, bytes]:
    root = home / "workspaces" / folder_name(session)
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def manifest(db: psycopg.Connection, session: str) -> dict[str, str]:
    rows = db.execute("SELECT path, encode(sha256, 'hex') FROM agent.manifest(%s)", (session,)).fetchall()
    return dict(rows)


def digests(files: dict[str, bytes]) -> dict[str, str]:
    return {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["same machine", "another machine"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_crash_inside_a_write_leaves_the_old_file_or_the_new_one(
    client: AgentClient,
    db: psycopg.Connection,
    place: Place,
    hire: Hire,
    tmp_path: Path,
    moment: str,
    is_elsewhere: bool,
) -> None:
    doomed = hire(AGENT, context_window=WIDE)
    answers(ask(client, "s-1", write("kept.txt", "kept"), write("big.txt", {"big": "old", "mb": 5})))
    old, new = big("old", 5).encode(), big("new", 5).encode()
    assert files_in(tmp_path, "s-1") == {"kept.txt": b"kept", "big.txt": old}

    (place.folder / "die").write_text(moment)
    task = ask(client, "s-1", write("big.txt", {"big": "new", "mb": 5}), ("read_file", {"path": "big.txt", "lines": 1}))
    assert doomed.process.wait(60) == -9
    assert place.world("deaths")[0]["moment"] == moment
    left = files_in(tmp_path, "s-1")
    assert left == {"kept.txt": b"kept", "big.txt": new if moment == "after rename" else old}

    home = tmp_path / "elsewhere" if is_elsewhere else tmp_path
    hire(AGENT, context_window=WIDE, home=home)
    wrote, read = answers(task)
    assert wrote == f"wrote big.txt, {len(new)} bytes"
    assert read.startswith(new[:63].decode())
    assert files_in(home, "s-1") == {"kept.txt": b"kept", "big.txt": new}
    assert digests(files_in(home, "s-1")) == manifest(db, "s-1")
    assert os.listdir(home / "workspaces" / ".incoming") == []
    saved = [event.data["path"] for event in client.session("s-1").events() if event.kind == "workspace.saved"]
    assert saved == ["kept.txt", "big.txt", "big.txt"], "a repeated write is no second change"


@pytest.mark.parametrize("moment", ["after the transaction", "half of the file", "after rename"])
def test_an_edit_that_is_repeated_after_a_crash_is_made_once(
    client: AgentClient, place: Place, hire: Hire, tmp_path: Path, moment: str
) -> None:
    doomed = hire(AGENT)
    answers(ask(client, "s-1", write("n.txt", "a")))
    (place.folder / "die").write_text(moment)
    task = ask(client, "s-1", ("edit_file", {"path": "n.txt", "old": "a", "new": "aa"}))
    assert doomed.process.wait(60) == -9
    hire(AGENT, home=tmp_path / "elsewhere")
    assert answers(task) == ["edited n.txt"]
    assert files_in(tmp_path / "elsewhere", "s-1") == {"n.txt": b"aa"}


def test_a_worker_on_an_empty_machine_goes_on_with_the_files_as_they_were(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Hire, tmp_path: Path
) -> None:
    doomed = hire(AGENT)
    calls = [
        write("notes/plan.md", "first\nsecond\n"),
        write("notes/empty", ""),
        ("edit_file", {"path": "notes/plan.md", "old": "second", "new": "zweite – 2"}),
        ("pass_away", {}),
        ("list_files", {}),
        ("read_file", {"path": "notes/plan.md", "from_line": 2}),
        ("search_files", {"words": "ZWEITE"}),
        ("edit_file", {"path": "notes/plan.md", "old": "first", "new": "erste"}),
    ]
    (place.folder / "die").write_text("between two calls")
    task = ask(client, "s-1", *calls)
    assert doomed.process.wait(60) == -9
    home = tmp_path / "elsewhere"
    hire(AGENT, home=home)
    assert answers(task) == [
        "wrote notes/plan.md, 13 bytes",
        "wrote notes/empty, 0 bytes",
        "edited notes/plan.md",
        "alive",
        "notes/empty (0 bytes)\nnotes/plan.md (19 bytes)",
        "zweite – 2\n",
        "notes/plan.md:2: zweite – 2",
        "edited notes/plan.md",
    ]
    assert files_in(home, "s-1") == {"notes/plan.md": "erste\nzweite – 2\n".encode(), "notes/empty": b""}
    assert digests(files_in(home, "s-1")) == manifest(db, "s-1")
    handoff = eventually(lambda: client.session("s-1").handoff())
    assert handoff.document["files"] == ["notes/empty", "notes/plan.md"]
    assert "## Files changed\n\n- notes/empty\n- notes/plan.md" in handoff.markdown
    assert handoff.exam_score == 1.0


@pytest.mark.parametrize("moment", ["before the transaction", "after the transaction"])
def test_a_file_is_deleted_once_whatever_dies_and_is_gone_on_every_machine(
    client: AgentClient, db: psycopg.Connection, place: Place, hire: Hire, tmp_path: Path, moment: str
) -> None:
    doomed = hire(AGENT)
    answers(ask(client, "s-1", write("a/b/c.txt", "c"), write("a/d.txt", "d"), write("e/f.txt", "f")))
    assert answers(ask(client, "s-1", ("delete_file", {"path": "e/f.txt"}), ("list_files", {}))) == [
        "deleted e/f.txt", "a/b/c.txt (1 bytes)\na/d.txt (1 bytes)",
    ]  # fmt: skip
    root = tmp_path / "workspaces" / folder_name("s-1")
    assert not (root / "e").exists(), "nor an empty folder"
    (place.folder / "die").write_text(moment)
    task = ask(client, "s-1", ("delete_file", {"path": "a/b/c.txt"}), ("delete_file", {"path": "a/b/c.txt"}))
    assert doomed.process.wait(60) == -9
    assert files_in(tmp_path, "s-1") == {"a/b/c.txt": b"c", "a/d.txt": b"d"}
    home = tmp_path / "elsewhere"
    hire(AGENT, home=home)
    done, missing = answers(task)
    assert done == "deleted a/b/c.txt"
    assert "There is no file 'a/b/c.txt'" in missing, "another call is another matter"
    assert files_in(home, "s-1") == {"a/d.txt": b"d"}
    assert digests(files_in(home, "s-1")) == manifest(db, "s-1")
    saved = [event for event in client.session("s-1").events() if event.kind == "workspace.saved"]
    assert [event.data["path"] for event in saved if event.data["removed"]] == ["e/f.txt", "a/b/c.txt"]
    client.fork("s-1", at=saved[2].seq, session="before")
    client.fork("s-1", session="after")
    client.rewind("s-1", to=saved[3].seq)
    expected = {"before": {"a/b/c.txt", "a/d.txt", "e/f.txt"}, "after": {"a/d.txt"}, "s-1": {"a/b/c.txt", "a/d.txt"}}
    for session, paths in expected.items():
        answers(ask(client, session, ("list_files", {})))
        assert set(files_in(home, session)) == paths == set(manifest(db, session)), session


def test_a_link_planted_where_a_file_is_deleted_is_not_followed(
    client: AgentClient, hire: Hire, tmp_path: Path
) -> None:
    hire(AGENT)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b.txt").write_text("secret")
    calls = [
        write("a/b.txt", "hello"),
        write("c.txt", "sea"),
        ("plant", {"path": "a"}),
        ("delete_file", {"path": "a/b.txt"}),
        ("plant", {"path": "c.txt"}),
        ("delete_file", {"path": "c.txt"}),
        ("delete_file", {"path": "../outside/b.txt"}),
    ]
    *_, first, _, second, third = answers(ask(client, "s-1", *calls))
    assert (first, second) == ("deleted a/b.txt", "deleted c.txt")
    assert "no way out of the directory" in third
    assert os.listdir(tmp_path / "workspaces" / folder_name("s-1")) == []
    assert {file.name: file.read_text() for file in outside.iterdir()} == {"b.txt": "secret"}


FORGERIES = [
    ({"data": "bm9uc2Vuc2U="}, "The stored content of a.txt is damaged"),
    ({"sha256": "00" * 32}, "The stored content of a.txt is damaged"),
    ({"size": 2_000_000_000}, "The stored content of a.txt is damaged"),
    ({"path": "../../outside/a.txt"}, "The files of this session cannot be restored. The path '../../outside/a.txt'"),
]


@pytest.mark.parametrize(("forgery", "told"), FORGERIES, ids=["data", "hash", "size", "path"])
def test_files_imported_by_plain_sql_that_are_not_what_they_say_are_found_before_they_are_written(
    client: AgentClient, db: psycopg.Connection, hire: Hire, tmp_path: Path, forgery: dict[str, Any], told: str
) -> None:
    hire(AGENT)
    (tmp_path / "outside").mkdir()
    answers(ask(client, "s-1", write("a.txt", "the real one")))
    document = client.export_session("s-1")
    client.delete_session("s-1")
    document["files"][0].update(forgery)
    with pytest.raises(InvalidInput):
        client.import_session(document, session="forged")
    db.execute("SELECT agent.import_session(%s, 'forged', NULL)", [Jsonb(document)])
    for call in (("read_file", {"path": "a.txt"}), write("b.txt", "b")):
        with pytest.raises(TaskFailed, match=re.escape(told)):
            answers(ask(client, "forged", call))
    assert files_in(tmp_path, "forged") == {}
    assert os.listdir(tmp_path / "outside") == []
    wrote, read = answers(ask(client, "s-2", write("a.txt", "the real one"), ("read_file", {"path": "a.txt"})))
    assert (wrote, read) == ("wrote a.txt, 12 bytes", "the real one")
    [row] = client.session("s-2").files()
    data = db.execute("SELECT data FROM agent.blobs WHERE sha256 = %s", [row.sha256]).fetchall()[0][0]
    assert unpacked(bytes(data), row) == b"the real one", "who saves the same content is not given the forged one"


def test_a_file_larger_than_the_window_can_be_written_and_read(client: AgentClient, hire: Hire, tmp_path: Path) -> None:
    hire(AGENT)
    calls = [write("big.txt", {"big": "x", "mb": 5}), ("read_file", {"path": "big.txt", "from_line": 81920})]
    assert answers(ask(client, "s-1", *calls)) == ["wrote big.txt, 5242880 bytes", big("x", 5)[-64:]]
    assert answers(ask(client, "s-1", ("list_files", {}))) == ["big.txt (5242880 bytes)"]


def test_two_sessions_never_see_each_others_files(client: AgentClient, hire: Hire, tmp_path: Path) -> None:
    hire(AGENT)
    sessions = ["s-1", "S-1", "s/1", "../s-1", "s-1 "]
    writing = [ask(client, session, write("mine.txt", f"of {session}")) for session in sessions]
    assert [answers(task) for task in writing] == [[f"wrote mine.txt, {len(s) + 3} bytes"] for s in sessions]
    name = folder_name("s-1")
    hostile = [
        ("read_file", {"path": f"../{folder_name('S-1')}/mine.txt"}),
        ("read_file", {"path": str(tmp_path / "workspaces" / name / "mine.txt")}),
        ("read_file", {"path": "other.txt"}),
        ("list_files", {}),
        ("search_files", {"words": "of"}),
    ]
    for session in sessions:
        up, absolute, other, listed, found = answers(ask(client, session, *hostile))
        assert "no way out of the directory" in up
        assert "is absolute" in absolute
        assert other == "There is no file 'other.txt'; list_files shows what there is."
        assert listed == f"mine.txt ({len(session) + 3} bytes)"
        assert found == f"mine.txt:1: of {session}"
        assert files_in(tmp_path, session) == {"mine.txt": f"of {session}".encode()}
    assert len(os.listdir(tmp_path / "workspaces")) == len(sessions) + 2


def test_directories_of_deleted_sessions_are_removed_and_nothing_else(
    client: AgentClient, hire: Hire, tmp_path: Path
) -> None:
    first = hire(AGENT)
    for session in ("kept", "gone"):
        answers(ask(client, session, write("a/b.txt", session)))
    base, outside = tmp_path / "workspaces", tmp_path / "outside"
    outside.mkdir()
    (outside / "b.txt").write_text("secret")
    (base / folder_name("gone") / "a" / "link").symlink_to(outside)
    (base / folder_name("a link")).symlink_to(outside)
    (base / "mine").mkdir()
    first.stop()
    client.delete_session("gone")
    hire(AGENT)
    eventually(lambda: not os.path.lexists(base / folder_name("a link")))
    eventually(lambda: not (base / folder_name("gone")).exists())
    assert set(os.listdir(base)) == {".incoming", ".index", "mine", folder_name("kept")}
    assert os.listdir(base / ".index") == [folder_name("kept")]
    assert files_in(tmp_path, "kept") == {"a/b.txt": b"kept"}
    assert {file.name: file.read_text() for file in outside.iterdir()} == {"b.txt": "secret"}
    assert answers(ask(client, "gone", ("list_files", {}))) == ["there are no files"], "the name can be used again"


def test_only_what_changed_is_stored(client: AgentClient, db: psycopg.Connection, hire: Hire) -> None:
    hire(AGENT, context_window=WIDE)
    content = {"big": "x", "mb": 1}
    answers(ask(client, "s-1", write("a.txt", content), write("a.txt", content)))
    answers(ask(client, "s-2", write("b.txt", content), write("c/copy.txt", content)))
    answers(ask(client, "s-1", write("a.txt", content)))
    assert db.execute("SELECT size, length(data) < 700000 FROM agent.blobs").fetchall() == [(1 << 20, True)]
    rows = "SELECT session_id, path FROM agent.files ORDER BY session_id, seq"
    assert db.execute(rows).fetchall() == [("s-1", "a.txt"), ("s-2", "b.txt"), ("s-2", "c/copy.txt")]

    answers(ask(client, "s-1", ("edit_file", {"path": "a.txt", "old": big("x", 1)[:130], "new": "changed"})))
    assert db.execute("SELECT count(*) FROM agent.blobs").fetchall() == [(2,)]
    assert db.execute("SELECT agent.sweep_blobs()").fetchall() == [(0,)]
    db.execute("DELETE FROM agent.sessions WHERE session_id = 's-1'")
    assert db.execute("SELECT agent.sweep_blobs()").fetchall() == [(1,)]
    assert db.execute("SELECT count(*) FROM agent.manifest('s-2')").fetchall() == [(2,)]
    db.execute("DELETE FROM agent.sessions")
    assert db.execute("SELECT agent.sweep_blobs()").fetchall() == [(1,)]


def test_limits_are_told_and_nothing_is_half_written(
    client: AgentClient, db: psycopg.Connection, hire: Hire, tmp_path: Path
) -> None:
    hire(AGENT, context_window=WIDE, file_mb=1, workspace_mb=2)
    first, large, second, third, smaller, bad = answers(
        ask(
            client,
            "s-1",
            write("a.txt", {"big": "a", "mb": 1}),
            write("large.txt", {"big": "a", "mb": 2}),
            write("b.txt", {"big": "b", "mb": 1}),
            write("c.txt", "one more"),
            write("a.txt", "smaller"),
            write("con.txt", "x"),
        )
    )
    assert first == "wrote a.txt, 1048576 bytes" and second == "wrote b.txt, 1048576 bytes"
    assert "large.txt would have 2097152 bytes, and a file may have 1048576; write several files." in large
    assert "c.txt would have 8 bytes, and the workspace has room for 0 of 2097152; make this or other files" in third
    assert smaller == "wrote a.txt, 7 bytes"
    assert "has a name that Windows reserves for a device" in bad
    assert files_in(tmp_path, "s-1") == {"a.txt": b"smaller", "b.txt": big("b", 1).encode()}
    assert digests(files_in(tmp_path, "s-1")) == manifest(db, "s-1")
    assert db.execute("SELECT count(*) FROM agent.files").fetchall() == [(3,)]


def test_what_somebody_puts_into_the_directory_is_neither_followed_nor_kept(
    client: AgentClient, hire: Hire, tmp_path: Path
) -> None:
    hire(AGENT)
    answers(ask(client, "s-1", write("a/b.txt", "hello"), write("c.txt", "sea")))
    root = tmp_path / "workspaces" / folder_name("s-1")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b.txt").write_text("secret")
    (root / "a" / "b.txt").unlink()
    (root / "a").rmdir()
    (root / "a").symlink_to(outside)
    (root / "c.txt").write_text("lies")
    (root / "extra").write_text("extra")
    calls = [
        ("read_file", {"path": "a/b.txt"}),
        ("read_file", {"path": "c.txt"}),
        ("read_file", {"path": "extra"}),
        write("a/new.txt", "new"),
    ]
    hello, sea, extra, wrote = answers(ask(client, "s-1", *calls))
    assert (hello, sea, wrote) == ("hello", "sea", "wrote a/new.txt, 3 bytes")
    assert "There is no file 'extra'" in extra
    assert files_in(tmp_path, "s-1") == {"a/b.txt": b"hello", "a/new.txt": b"new", "c.txt": b"sea"}
    assert {file.name: file.read_text() for file in outside.iterdir()} == {"b.txt": "secret"}


def test_a_link_planted_while_a_task_runs_is_replaced_and_not_followed(
    client: AgentClient, hire: Hire, tmp_path: Path
) -> None:
    hire(AGENT)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b.txt").write_text("secret")
    calls = [
        write("a/b.txt", "hello"),
        ("plant", {"path": "a"}),
        ("read_file", {"path": "a/b.txt"}),
        ("plant", {"path": "a/b.txt"}),
        write("a/b.txt", "again"),
        ("search_files", {"words": "again"}),
    ]
    assert answers(ask(client, "s-1", *calls))[2:] == [
        "hello",
        "planted",
        "wrote a/b.txt, 5 bytes",
        "a/b.txt:1: again",
    ]
    root = tmp_path / "workspaces" / folder_name("s-1")
    assert not (root / "a").is_symlink() and not (root / "a" / "b.txt").is_symlink()
    assert {file.name: file.read_text() for file in outside.iterdir()} == {"b.txt": "secret"}


def test_the_manifest_knows_the_past_and_forgets_what_was_removed(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    hire(AGENT)
    answers(ask(client, "s-1", write("a.txt", "1"), write("b.txt", "2"), write("a.txt", "3")))
    seqs = [event.seq for event in client.session("s-1").events() if event.kind == "workspace.saved"]
    then = "SELECT path, size FROM agent.manifest('s-1', %s)"
    assert [len(db.execute(then, (seq,)).fetchall()) for seq in (0, *seqs)] == [0, 1, 2, 2]
    db.execute("INSERT INTO agent.files (session_id, path, seq) VALUES ('s-1', 'a.txt', 10000)")
    assert list(manifest(db, "s-1")) == ["b.txt"]
    assert answers(ask(client, "s-1", ("list_files", {}))) == ["b.txt (1 bytes)"]


def test_the_setting_offers_the_workspace_to_every_agent(
    client: AgentClient, db: psycopg.Connection, hire: Hire
) -> None:
    tools = "SELECT name, tools ? 'write_file' FROM agent.agents ORDER BY name"
    worker = hire(AGENT, "tests.filing:plain")
    assert db.execute(tools).fetchall() == [("filing", True), ("plain", False)]
    worker.stop()
    hire(AGENT, "tests.filing:plain", workspace="on")
    assert db.execute(tools).fetchall() == [("filing", True), ("plain", True)]
    assert answers(ask(client, "s-1", write("a.txt", "x"), agent="plain")) == ["wrote a.txt, 1 bytes"]
