"""What is shown of a file is limited and says so; an edit is exact."""

from __future__ import annotations

import pytest

from agent.excerpt import MOST_CHARACTERS, as_bytes, as_text, lines_with, replaced, shown
from store.errors import Conflict, InvalidInput

TEXT = "".join(f"line {n}\n" for n in range(1, 11))


def test_some_lines_and_a_note_of_what_is_left() -> None:
    assert shown(TEXT, 1, 2) == "line 1\nline 2\n[lines 1 to 2 of 10; go on with from_line=3]"
    assert shown(TEXT, 9, 2) == "line 9\nline 10"
    assert shown(TEXT, 1, 100) == TEXT
    assert shown("", 1, 10) == ""
    assert shown("one", -5, -5) == "one"
    with pytest.raises(InvalidInput, match="only 10 lines"):
        shown(TEXT, 11, 1)


def test_long_lines_are_cut_and_many_lines_are_fewer() -> None:
    cut = shown("x" * 100_000 + "\nend", 1, 2)
    assert len(cut) < MOST_CHARACTERS + 200
    assert cut.endswith("[line 1 has 100000 characters and is cut; go on with from_line=2]")
    fewer = shown("\n".join("y" * 1000 for _ in range(100)), 1, 100)
    assert len(fewer) < MOST_CHARACTERS + 200
    assert "of 100; go on with from_line=" in fewer


def test_an_edit_is_exact_and_unique() -> None:
    assert replaced("f", "a b c", "b", "x\\1") == "a x\\1 c"
    assert replaced("f", "a\r\nb", "\r\n", "") == "ab"
    for old, new, says in [
        ("", "x", "is empty"),
        ("b", "b", "are the same"),
        ("z", "x", "is not in f"),
        ("aa", "x", "more than once"),
    ]:
        with pytest.raises((Conflict, InvalidInput), match=says):
            replaced("f", "aaab", old, new)


def test_binary_content_is_known_and_halves_of_characters_are_refused() -> None:
    assert as_text(b"\x00\x01") is None
    assert as_text(b"\xff\xfe") is None
    assert as_text("über".encode()) == "über"
    with pytest.raises(InvalidInput, match="lone surrogates"):
        as_bytes("\ud800")


def test_lines_are_found_whatever_their_case_with_their_place() -> None:
    content = ("a\n" + "x" * 1000 + "NEEDLE" + "y" * 1000 + "\nneedle").encode()
    first, second = lines_with("Needle", "f", content)
    assert first.startswith("f:2: x") and "NEEDLE" in first and len(first) < 320
    assert second == "f:3: needle"
    assert lines_with("x", "f", b"\0x") == []
