"""What the agents of tests leave behind: a line whenever a model or a tool really runs."""

from __future__ import annotations

import json
import os
from typing import Any

from agent.recorder import current
from tests.faults import folder, note


def this_task() -> str | None:
    execution = current.get()
    return execution.task.task_id if execution else None


def ran(what: str, **facts: Any) -> None:
    note("ran", {"task": this_task(), "what": what, "pid": os.getpid(), **facts})


def happened(key: str) -> bool:
    file = folder() / "world.jsonl"
    return file.exists() and any(json.loads(line)["key"] == key for line in file.read_text().splitlines())


def measured(sent: list[dict[str, Any]]) -> int:
    """Tokens of all that was sent, at four characters each."""
    texts = [str(part.get("content") or part.get("args") or "") for message in sent for part in message["parts"]]
    return sum(len(text) for text in texts) // 4 + len(sent)
