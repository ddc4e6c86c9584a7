"""The paths an agent may name: relative, plain, the same on every machine, and never out of the directory."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from store.errors import Conflict, InvalidInput

LONGEST_NAME = 200
LONGEST_PATH = 900
"""Both in bytes, as file systems count."""
MOST_NAMES = 20

EXAMPLE = "write a relative path such as notes/plan.md"
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that are not seen, or change how others are."""
RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)", re.IGNORECASE)


def parts_of(path: str) -> tuple[str, ...]:
    """The names that make up a path, or one sentence that says what is wrong with it."""

    def refuse(why: str) -> InvalidInput:
        return InvalidInput(f"The path {path[:100]!a} {why}; {EXAMPLE}.")

    if not path:
        raise InvalidInput(f"The path is empty; {EXAMPLE}.")
    if any(unicodedata.category(character) in UNSEEN for character in path):
        raise refuse("has control characters or invisible ones")
    if len(path.encode()) > LONGEST_PATH:
        raise refuse(f"is longer than {LONGEST_PATH} bytes")
    if unicodedata.normalize("NFC", path) != path:
        raise refuse("has accents apart from their letters")
    # Also as a file system would read it that takes look-alikes for the plain characters.
    plain = unicodedata.normalize("NFKC", path)
    if plain.count("/") != path.count("/"):
        raise refuse("has a character that stands for /")
    for form in (path, plain):
        if (problem := problem_with(form)) is not None:
            raise refuse(problem)
    return tuple(path.split("/"))


def problem_with(path: str) -> str | None:
    if "\\" in path:
        return "has a backslash, and folders are separated by /"
    if ":" in path:
        return "has a colon, which is for drives and addresses"
    if path.startswith("/"):
        return "is absolute"
    if path.startswith("~"):
        return "begins with ~, and there is no home directory here"
    names = path.split("/")
    if len(names) > MOST_NAMES:
        return f"has more than {MOST_NAMES} names"
    return next((problem for name in names if (problem := problem_with_name(name)) is not None), None)


def problem_with_name(name: str) -> str | None:
    if not name:
        return "has an empty name between two / or at an end"
    if name in (".", ".."):
        return f"has the name {name}, and there is no way out of the directory or around in it"
    if name != name.strip() or name.endswith("."):
        return "has a name that begins or ends with a space, or ends with a dot"
    if len(name.encode()) > LONGEST_NAME:
        return f"has a name longer than {LONGEST_NAME} bytes"
    if RESERVED.fullmatch(name.split(".")[0].strip()):
        return "has a name that Windows reserves for a device"
    return None


def check_room_for(path: str, existing: Iterable[str]) -> None:
    """Refuses a new path that some file system would take for another, and files that would have to be folders."""
    way = prefixes(path)
    folders: set[str] = set()
    seen: dict[str, str] = {}
    for known in existing:
        for prefix in prefixes(known):
            seen[folded(prefix)] = prefix
        folders.update(prefixes(known)[:-1])
        if known in way[:-1]:
            raise Conflict(f"{known} is a file, so nothing can be below it; choose another folder than in {path}.")
    if path in folders:
        raise Conflict(f"{path} is a folder; choose another name for the file.")
    for prefix in way:
        other = seen.get(folded(prefix), prefix)
        if other != prefix:
            raise Conflict(f"{prefix!a} differs from {other!a} only in case or spelling; use {other!a}.")


def prefixes(path: str) -> list[str]:
    """The folders on the way to a path, and the path itself."""
    parts = path.split("/")
    return ["/".join(parts[: length + 1]) for length in range(len(parts))]


def folded(path: str) -> str:
    """What is left of a path on a file system that is careless about case and composition."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())
