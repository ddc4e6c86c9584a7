"""Deaths at chosen points. A worker with this installed passes numbered points and kills itself with SIGKILL at one.

`points.json` in the test's folder names the task and, for each of its lives, the point at which that life ends.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_lock = threading.Lock()
_passed = 0


def folder() -> Path:
    return Path(os.environ["TEST_WORLD"])


def note(file: str, facts: dict[str, Any]) -> None:
    """Leave a line in the outside world, whole or not at all."""
    line = (json.dumps(facts) + "\n").encode()
    descriptor = os.open(folder() / f"{file}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def point(task: str | None, name: str) -> None:
    """Pass a point; die there if it is this life's last."""
    global _passed
    plan_file = folder() / "points.json"
    if "TEST_DEATHS" not in os.environ or not plan_file.exists():
        return
    plan = json.loads(plan_file.read_text())
    if plan["task"] != task:
        return
    deaths_file = folder() / "deaths.jsonl"
    with _lock:
        _passed += 1
        note("points", {"task": task, "point": _passed, "name": name, "pid": os.getpid()})
        deaths = (
            sum(json.loads(line)["task"] == task for line in deaths_file.read_text().splitlines())
            if deaths_file.exists()
            else 0
        )
        if deaths < len(plan["at"]) and _passed == plan["at"][deaths]:
            note("deaths", {"task": task, "point": _passed, "name": name, "pid": os.getpid()})
            os.kill(os.getpid(), signal.SIGKILL)


def install() -> None:
    """Put points before and after everything a task writes."""
    from dbos._sys_db import SystemDatabase

    import agent.recorder
    import agent.workflow

    def around(owner: Any, name: str, task_of: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            task = task_of(*args, **kwargs)
            point(task, f"before {name}")
            result = original(*args, **kwargs)
            point(task, f"after {name}")
            return result

        setattr(owner, name, wrapped)

    around(SystemDatabase, "check_operation_execution", lambda self, task, *_: task)
    around(SystemDatabase, "record_operation_result", lambda self, result, **_: result["workflow_uuid"])
    around(SystemDatabase, "update_workflow_outcome", lambda self, task, *_, **__: task)

    import agent.durability

    original_fenced = agent.recorder.fenced

    async def fenced(database: Any, statement: Any, task: str) -> Any:
        name = statement.text.split("agent.")[1].split("(")[0]
        point(task, f"before {name}")
        result = await original_fenced(database, statement, task)
        point(task, f"after {name}")
        return result

    for module in (agent.workflow, agent.durability):
        module.fenced = fenced  # type: ignore[attr-defined]
