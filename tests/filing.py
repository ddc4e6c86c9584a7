"""An agent that works on its files as its input says, and workers that die inside a write.

An input is a JSON list of calls, `["write_file", {"path": "a", "content": "x"}]`, made one after the other; the answer
is the JSON list of what they gave. A content `{"big": "a", "mb": 5}` stands for so many bytes. The file `die` in the
test's folder names the moment at which a worker kills itself, once.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, RetryPromptPart, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import agent.desk
import agent.engine
import agent.folder
from agent import effect, idempotency_key, workspace
from agent.recorder import current
from store.statement import Statement
from tests.faults import folder, note

agent.engine.POLL_SECONDS = 0.02


def moment(name: str) -> None:
    plan = folder() / "die"
    if plan.exists() and plan.read_text() == name:
        plan.unlink()
        note("deaths", {"moment": name, "pid": os.getpid()})
        os.kill(os.getpid(), signal.SIGKILL)


def big(seed: str, mb: int) -> str:
    """Text that does not compress to nothing, the same every time."""
    lines = (hashlib.sha256(f"{seed}{number}".encode()).hexdigest()[:63] + "\n" for number in range(mb * 16384))
    return "".join(lines)


def write_filing(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    execution = current.get()
    assert execution is not None
    task, wanted = execution.task.task_id, json.loads(execution.task.input)
    answers = [
        part.content
        for message in messages
        for part in message.parts
        if isinstance(part, (ToolReturnPart, RetryPromptPart)) and part.tool_call_id.startswith(task)
    ]
    if len(answers) == len(wanted):
        return ModelResponse(parts=[TextPart(json.dumps(answers))])
    name, arguments = wanted[len(answers)]
    content = arguments.get("content")
    if isinstance(content, dict):
        arguments = {**arguments, "content": big(content["big"], content["mb"])}
    return ModelResponse(parts=[ToolCallPart(name, arguments, f"{task}-{len(answers)}")])


filing = Agent(FunctionModel(write_filing, model_name="scripted"), name="filing", toolsets=[workspace()])
plain = Agent(FunctionModel(write_filing, model_name="scripted"), name="plain")


@filing.tool_plain
@effect(in_doubt="retry")
async def pass_away() -> str:
    moment("between two calls")
    return "alive"


@filing.tool_plain
@effect(in_doubt="retry")
async def plant(path: str) -> str:
    """Somebody with a shell replaces a file or a folder by a link to the outside."""
    execution = current.get()
    assert execution is not None and execution.folder is not None
    target = execution.folder.path / path
    target.rename(folder() / f"moved-{idempotency_key()[-8:]}")
    target.symlink_to(folder() / "outside")
    return "planted"


def install() -> None:
    """Put moments into everything a write does."""
    fill, rename, fenced = agent.folder.fill, os.rename, agent.desk.fenced

    def fill_in_halves(descriptor: int, content: bytes) -> None:
        fill(descriptor, content[: len(content) // 2])
        moment("half of the file")
        fill(descriptor, content[len(content) // 2 :])
        moment("before fsync")

    def rename_with_moments(*args: Any, src_dir_fd: int, dst_dir_fd: int) -> None:
        is_index = src_dir_fd == dst_dir_fd
        if not is_index:
            moment("before rename")
        rename(*args, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if not is_index:
            moment("after rename")

    async def save_with_moments(database: Any, statement: Statement[Any], task: Any) -> Any:
        moment("before the transaction")
        saved = await fenced(database, statement, task)
        moment("after the transaction")
        return saved

    class Os:
        """The module, but for one name."""

        def __getattr__(self, name: str) -> Any:
            return rename_with_moments if name == "rename" else getattr(os, name)

    agent.folder.fill = fill_in_halves
    agent.folder.os = Os()  # type: ignore[assignment]
    agent.desk.fenced = save_with_moments  # type: ignore[assignment]


if "TEST_WORLD" in os.environ:
    install()


# --- archivist: keeps a word in its file and its history, and burns it only when a person says so ---------------------


def write_archivist(prompt: str, results: list[str]) -> list[TextPart | ToolCallPart]:
    match prompt.split(), len(results):
        case ["remember", word], 0:
            return [ToolCallPart("write_file", {"path": "word.txt", "content": word})]
        case ["recall", *_], 0:
            return [ToolCallPart("read_file", {"path": "word.txt"}), ToolCallPart("search_files", {"words": "secret"})]
        case ["burn", *_], 0:
            return [ToolCallPart("burn", {})]
        case ["burn", *_], 1:
            return [ToolCallPart("read_file", {"path": "word.txt"})]
        case ["remember" | "recall" | "burn", *_], _:
            return [TextPart(" | ".join(results))]
        case _:
            return [TextPart(f"heard {prompt}")]


def respond_as_archivist(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    execution = current.get()
    assert execution is not None
    said = [(part, str(getattr(part, "content", ""))) for message in messages for part in message.parts]
    note("sent", {"session": execution.task.session_id, "said": [text for _, text in said]})
    prompt, results = "", list[str]()
    for part, text in said:
        if isinstance(part, ToolReturnPart):
            results.append(text)
        elif part.part_kind == "user-prompt" and not text.startswith("What follows was "):
            prompt, results = text, []
    return ModelResponse(parts=write_archivist(prompt, results))


archivist = Agent(FunctionModel(respond_as_archivist, model_name="archivist"), name="archivist", toolsets=[workspace()])


@archivist.tool_plain(requires_approval=True)
async def burn() -> str:
    note("world", {"effect": "burn", "key": idempotency_key()})
    return "burned"
