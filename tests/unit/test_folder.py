"""Nothing an agent names, and nothing somebody plants, leads out of the session's directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import agent.folder
from agent.folder import Folder, Foreign, folder_name
from agent.paths import check_room_for, parts_of
from store.errors import Conflict, InvalidInput
from store.files import describe

HOSTILE = [
    "",
    ".",
    "..",
    "../x",
    "../../etc/passwd",
    "a/../b",
    "a/..",
    "a/./b",
    "./a",
    "a/../../sentinel/secret",
    "/",
    "/etc/passwd",
    "//etc/passwd",
    "a//b",
    "a/",
    "/a/",
    "~",
    "~/.ssh/id_rsa",
    "~root/x",
    "C:",
    "C:/x",
    "c:x",
    "C:\\Windows\\system32",
    "\\\\server\\share",
    "..\\x",
    "a\\b",
    "file.txt:stream",
    "file:///etc/passwd",
    "a\0b",
    "a\nb",
    "a\rb",
    "a\tb",
    "a\x1bb",
    "a\x7fb",
    "a\x85b",
    "a\u200bb",
    "a\u202eb",
    "a\u2028b",
    "a\ud800b",
    "\ufeffa",
    "a.",
    "a...",
    "a ",
    " a",
    "a/b ./c",
    "a /b",
    "\u00a0",
    "...",
    "CON",
    "con",
    "nul.txt",
    "a/AUX/b",
    "COM1",
    "lpt9.log",
    "com¹",
    "CONIN$",
    "prn .txt",
    "n" * 201,
    "ä" * 101,
    "/".join("n" * 190 for _ in range(5)),
    "/".join("abcdefghijklmnopqrstuvwxyz"),
    "e\u0301.txt",
    "．．/x",
    "..／x",
    "a℀b",
    "C：/x",
    "a＼b",
    "‥/x",
    "…",
]


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[Path]:
    """A directory beside the workspaces that nobody may touch."""
    beside = tmp_path / "sentinel"
    beside.mkdir()
    (beside / "secret").write_text("secret")
    before = picture(beside)
    yield beside
    assert picture(beside) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["sentinel", "workspaces"]


def picture(place: Path) -> list[tuple[str, int, int, bytes]]:
    return [
        (entry.name, entry.stat().st_ino, entry.stat().st_mtime_ns, entry.read_bytes())
        for entry in sorted(place.iterdir())
    ]


@pytest.fixture
def folder(tmp_path: Path, sentinel: Path) -> Folder:
    return holding(Folder(tmp_path / "workspaces", "s-1"), {"a/b.txt": b"hello", "c.txt": b"sea"})


def holding(folder: Folder, contents: dict[str, bytes]) -> Folder:
    """The folder, restored to these files."""
    folder.files = {path: describe(path, content) for path, content in contents.items()}
    for file in folder.survey():
        folder.put(file.path, contents[file.path])
    folder.keep_index()
    return folder


def tree(folder: Folder) -> dict[str, bytes]:
    found = [entry for entry in folder.path.rglob("*") if not stat.S_ISDIR(entry.lstat().st_mode)]
    return {str(entry.relative_to(folder.path)): entry.read_bytes() for entry in found}


def test_there_are_enough_hostile_paths() -> None:
    assert len(set(HOSTILE)) >= 40


@pytest.mark.parametrize("path", HOSTILE, ids=ascii)
def test_a_hostile_path_is_refused_with_a_sentence(folder: Folder, path: str) -> None:
    before = tree(folder)
    for attempt in (lambda: folder.put(path, b"x"), lambda: folder.read(path), lambda: parts_of(path)):
        with pytest.raises(InvalidInput) as caught:
            attempt()
        said = str(caught.value)
        assert said.startswith("The path ") and said.endswith("such as notes/plan.md.")
        assert said.isascii() and said.isprintable()
    assert tree(folder) == before


@pytest.mark.parametrize(
    "path", ["a", "a/b.txt", ".gitignore", "notes/plan.md", "übung.txt", "日本/語.md", "a..b", "x=1"]
)
def test_an_ordinary_path_is_not(path: str) -> None:
    assert "/".join(parts_of(path)) == path


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("C.TXT", "'C.TXT' differs from 'c.txt' only in case or spelling; use 'c.txt'."),
        ("A/new.txt", "'A' differs from 'a' only in case"),
        ("a/B.txt", "'a/B.txt' differs from 'a/b.txt' only in case"),
        ("\uff43.txt", "differs from 'c.txt' only in case or spelling"),
        ("c.txt/below", "c.txt is a file, so nothing can be below it"),
        ("a", "a is a folder; choose another name"),
    ],
)
def test_a_path_that_could_be_taken_for_another_is_refused(folder: Folder, path: str, says: str) -> None:
    with pytest.raises(Conflict) as caught:
        check_room_for(path, folder.files)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "session", ["../../etc", "/", "..", ".", "", "a/b", "a\0b", "CON", "x" * 300, "ü" * 50, ".index"]
)
def test_a_hostile_session_id_is_a_harmless_name(session: str) -> None:
    name = folder_name(session)
    assert parts_of(name) == (name,)
    assert name.isascii() and not name.startswith(".")
    assert len({folder_name(other) for other in (session, session + "x", session.upper() + "y")}) == 3


def test_sessions_that_differ_in_case_have_different_names() -> None:
    assert folder_name("Acme").lower() != folder_name("acme").lower()


def plant_link(folder: Folder, sentinel: Path) -> None:
    (folder.path / "c.txt").unlink()
    (folder.path / "c.txt").symlink_to(sentinel / "secret")


def plant_hard_link(folder: Folder, sentinel: Path) -> None:
    (folder.path / "c.txt").unlink()
    os.link(folder.base / "other", folder.path / "c.txt")


def plant_fifo(folder: Folder, sentinel: Path) -> None:
    (folder.path / "c.txt").unlink()
    os.mkfifo(folder.path / "c.txt")


def plant_device(folder: Folder, sentinel: Path) -> None:
    (folder.path / "c.txt").unlink()
    try:
        os.mknod(folder.path / "c.txt", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")


def plant_folder(folder: Folder, sentinel: Path) -> None:
    (folder.path / "c.txt").unlink()
    (folder.path / "c.txt").mkdir()
    (folder.path / "c.txt" / "x").write_text("x")


def plant_other_content(folder: Folder, sentinel: Path) -> None:
    (folder.path / "c.txt").write_bytes(b"SEA")


def plant_nothing(folder: Folder, sentinel: Path) -> None:
    (folder.path / "c.txt").unlink()


PLANTS = [plant_link, plant_hard_link, plant_fifo, plant_device, plant_folder, plant_other_content, plant_nothing]


@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_planted_for_a_file_is_never_read_and_restoring_replaces_it(
    folder: Folder, sentinel: Path, plant: object
) -> None:
    (folder.base / "other").write_bytes(b"sea")
    assert callable(plant)
    plant(folder, sentinel)
    with pytest.raises(Foreign) as caught:
        folder.read("c.txt")
    assert str(caught.value).endswith("; try again.")
    holding(folder, {"a/b.txt": b"hello", "c.txt": b"sea"})
    assert tree(folder) == {"a/b.txt": b"hello", "c.txt": b"sea"}
    assert folder.read("c.txt") == b"sea"
    assert (folder.base / "other").read_bytes() == b"sea"


@pytest.mark.parametrize("plant", [plant_link, plant_hard_link, plant_fifo, plant_device])
def test_writing_replaces_what_is_planted_and_does_not_write_through_it(
    folder: Folder, sentinel: Path, plant: object
) -> None:
    (folder.base / "other").write_bytes(b"sea")
    assert callable(plant)
    plant(folder, sentinel)
    folder.put("c.txt", b"new")
    assert (folder.path / "c.txt").lstat().st_nlink == 1
    assert stat.S_ISREG((folder.path / "c.txt").lstat().st_mode)
    assert tree(folder) == {"a/b.txt": b"hello", "c.txt": b"new"}
    assert (folder.base / "other").read_bytes() == b"sea"


def test_writing_below_a_planted_link_is_refused(folder: Folder, sentinel: Path) -> None:
    (folder.path / "a" / "b.txt").unlink()
    (folder.path / "a").rmdir()
    (folder.path / "a").symlink_to(sentinel)
    for attempt in (
        lambda: folder.put("a/secret", b"x"),
        lambda: folder.put("a/b/c", b"x"),
        lambda: folder.read("a/b.txt"),
    ):
        with pytest.raises(Foreign, match="is no folder but a link"):
            attempt()


def test_writing_over_a_planted_folder_is_refused(folder: Folder, sentinel: Path) -> None:
    plant_folder(folder, sentinel)
    with pytest.raises(Foreign, match="is a folder that does not belong here"):
        folder.put("c.txt", b"new")
    assert os.listdir(folder.base / ".incoming") == []


@pytest.mark.parametrize("name", [None, ".incoming", ".index"])
def test_directories_of_perdures_own_are_not_links_either(folder: Folder, sentinel: Path, name: str | None) -> None:
    target = folder.base / (name or folder.name)
    target.rename(folder.base / "moved")
    target.symlink_to(sentinel)
    if name != ".index":
        with pytest.raises(Foreign):
            folder.put("c.txt", b"x")
    holding(folder, {"a/b.txt": b"hello", "c.txt": b"sea"})
    assert not target.is_symlink()
    assert tree(folder) == {"a/b.txt": b"hello", "c.txt": b"sea"}


def test_restoring_removes_everything_that_is_not_in_the_manifest(folder: Folder, sentinel: Path) -> None:
    (folder.path / "a" / "extra").write_text("x")
    (folder.path / "deep" / "er").mkdir(parents=True)
    (folder.path / "deep" / "er" / "link").symlink_to(sentinel)
    (folder.path / "deep" / "hard").write_text("x")
    os.mkfifo(folder.path / "pipe")
    (folder.path / "out").symlink_to(sentinel)
    (folder.path / "dangling").symlink_to("/nowhere")
    os.mkdir(os.fsencode(folder.path) + b"/\xff\xfe")
    (folder.base / ".incoming" / f"{folder.name}.left-behind").write_text("half")
    holding(folder, {"a/b.txt": b"hello"})
    assert tree(folder) == {"a/b.txt": b"hello"}
    assert sorted(os.listdir(folder.path)) == ["a"]
    assert os.listdir(folder.base / ".incoming") == []


def test_unchanged_files_are_not_read_again(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = agent.folder.read_plain

    def noted(at: int, name: str, size: int) -> bytes:
        read.append(name)
        return original(at, name, size)

    monkeypatch.setattr(agent.folder, "read_plain", noted)
    assert folder.survey() == []
    assert read == [folder.name], "the index alone"
    assert folder.survey(is_trusting=False) == []
    assert sorted(read[1:]) == ["b.txt", "c.txt"]


@pytest.mark.parametrize("written", ["", "{", "[]", '{"a/b.txt": 1}', "null", "\udcff"])
def test_a_broken_index_costs_nothing_but_reading(folder: Folder, written: str) -> None:
    (folder.base / ".index" / folder.name).write_bytes(written.encode("utf-8", "surrogateescape"))
    assert folder.survey() == []


def test_a_forged_index_does_not_make_other_content_pass(folder: Folder) -> None:
    plant_other_content(folder, Path())
    seen = (folder.path / "c.txt").stat()
    folder._marks["c.txt"] = [
        folder.files["c.txt"].sha256.hex(), seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino
    ]  # fmt: skip
    folder.keep_index()
    with pytest.raises(Foreign, match="changed by somebody else"):
        folder.read("c.txt")
    assert [file.path for file in folder.survey(is_trusting=False)] == ["c.txt"]
