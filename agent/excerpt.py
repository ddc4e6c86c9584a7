"""What is shown of a text, found in it, and replaced in it."""

from __future__ import annotations

from store.errors import Conflict, InvalidInput

MOST_LINES = 2000
MOST_CHARACTERS = 40_000
LONGEST_FOUND = 300
BEFORE_FOUND = 100


def as_bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput("The content has halves of characters (lone surrogates); write whole ones.") from None


def as_text(content: bytes) -> str | None:
    """The text that a content is, unless it is binary."""
    if b"\0" in content[:8000]:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def shown(text: str, first: int, most: int) -> str:
    """Some lines of a text, and a note if they are not all."""
    first, most = max(1, first), min(max(1, most), MOST_LINES)
    lines = text.split("\n")
    total = max(1, len(lines) - (lines[-1] == ""))
    if first > total:
        raise InvalidInput(f"There are only {total} lines; choose a from_line up to that.")
    chosen = lines[first - 1 : first - 1 + most]
    if len(chosen[0]) > MOST_CHARACTERS:
        rest = f"go on with from_line={first + 1}" if first < total else "it is the last"
        return f"{chosen[0][:MOST_CHARACTERS]}\n[line {first} has {len(chosen[0])} characters and is cut; {rest}]"
    while len("\n".join(chosen)) > MOST_CHARACTERS:
        chosen = chosen[: len(chosen) * 3 // 4]
    last = min(first - 1 + len(chosen), total)
    piece = "\n".join(chosen)
    return piece if last == total else f"{piece}\n[lines {first} to {last} of {total}; go on with from_line={last + 1}]"


def replaced(path: str, text: str, old: str, new: str) -> str:
    if not old:
        raise InvalidInput("`old` is empty; give the text to replace, or use write_file.")
    if old == new:
        raise InvalidInput("`old` and `new` are the same; there is nothing to change.")
    place = text.find(old)
    if place < 0:
        raise Conflict(f"`old` is not in {path}; read_file shows what is, and every space counts.")
    if text.find(old, place + 1) >= 0:
        raise Conflict(f"`old` is in {path} more than once; give more of what stands around it.")
    return text[:place] + new + text[place + len(old) :]


def lines_with(words: str, path: str, content: bytes) -> list[str]:
    """The lines that contain the words, whatever their case, each with its place."""
    text = as_text(content)
    if text is None:
        return []
    found: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        place = line.casefold().find(words.casefold())
        if place >= 0:
            start = max(0, place - BEFORE_FOUND)
            found.append(f"{path}:{number}: {line[start : start + LONGEST_FOUND]}")
    return found
