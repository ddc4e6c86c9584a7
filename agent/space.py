"""The workspace as an agent sees it: tools that work on the files of its session."""

from __future__ import annotations

from typing import Any

from pydantic_ai import FunctionToolset

from agent.desk import at_the_desk, in_thread
from agent.excerpt import as_text, lines_with, shown
from agent.paths import parts_of
from agent.tools import pure
from agent.watch import beat
from store.errors import InvalidInput

NAMES = ("list_files", "read_file", "write_file", "edit_file", "delete_file", "search_files")
MOST_LISTED = 500
MOST_FOUND = 100
MOST_REFUSALS = 5
"""In a row, before the task fails: a model may need more than one try to find an allowed path."""


def workspace_tools() -> FunctionToolset[Any]:
    """Each tool is one step that may be repeated: those that write are as `Desk.write`, `Desk.edit` and `Desk.delete`
    say. They are not effects, so that the ledger does not keep a second copy of every content."""
    tools: FunctionToolset[Any] = FunctionToolset(id="perdure-workspace", max_retries=MOST_REFUSALS)

    @tools.tool_plain
    @pure
    async def list_files(under: str = "") -> str:
        """List the files of your workspace with their sizes; with `under`, those below one folder."""
        async with at_the_desk() as desk:
            start = f"{'/'.join(parts_of(under.rstrip('/')))}/" if under else ""
            found = [file for path, file in sorted(desk.folder.files.items()) if path.startswith(start)]
        lines = [f"{file.path} ({file.size} bytes)" for file in found[:MOST_LISTED]]
        if len(found) > MOST_LISTED:
            lines.append(f"[{len(found) - MOST_LISTED} more are not shown; name a folder]")
        return "\n".join(lines) or "there are no files"

    @tools.tool_plain
    @pure
    async def read_file(path: str, from_line: int = 1, lines: int = 500) -> str:
        """Read a text file of your workspace, from a line on; a note at the end says how much is left."""
        async with at_the_desk() as desk:
            content = await desk.read(path)
            text = as_text(content)
            if text is None:
                return f"[{path} is binary, {len(content)} bytes, and not shown]"
            return shown(text, from_line, lines)

    @tools.tool_plain(sequential=True)
    @pure
    async def write_file(path: str, content: str) -> str:
        """Write a text file of your workspace, new or in place of what it held. Folders are made as needed."""
        async with at_the_desk() as desk:
            size = await desk.write(path, content)
        return f"wrote {path}, {size} bytes"

    @tools.tool_plain(sequential=True)
    @pure
    async def edit_file(path: str, old: str, new: str) -> str:
        """Replace a piece of a text file. `old` must be there exactly as given, and once."""
        async with at_the_desk() as desk:
            await desk.edit(path, old, new)
        return f"edited {path}"

    @tools.tool_plain(sequential=True)
    @pure
    async def delete_file(path: str) -> str:
        """Remove a file of your workspace, and folders that are empty without it."""
        async with at_the_desk() as desk:
            await desk.delete(path)
        return f"deleted {path}"

    @tools.tool_plain
    @pure
    async def search_files(words: str) -> str:
        """Find the lines that contain the text, whatever its case, in all text files of your workspace."""
        found: list[str] = []
        async with at_the_desk() as desk:
            if not words.strip():
                raise InvalidInput("There is nothing to search for; give some text.")
            for path in sorted(desk.folder.files):
                found += await in_thread(lines_with, words, path, await desk.read(path))
                beat()
                if len(found) > MOST_FOUND:
                    break
        if len(found) > MOST_FOUND:
            found = [*found[:MOST_FOUND], "[there is more; search for something rarer]"]
        return "\n".join(found) or f"no line contains {words!r}"

    return tools
