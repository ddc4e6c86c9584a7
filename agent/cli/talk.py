"""Commands that talk: send, chat, approve, deny."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Annotated, cast

import typer

from agent.cli.screen import brief, connected, console, harmless, living_workers
from agent.client import AgentClient, Task
from agent.config import read_settings
from agent.home import open_home
from store.errors import NotFound, PerdureError, TaskFailed, Unusable
from store.types import WhenBusy

Reason = Annotated[str | None, typer.Option("--reason", help="What the model is told.")]


def add_to(app: typer.Typer) -> None:
    for command in (send, chat, approve, deny):
        app.command()(command)


def send(
    agent: str,
    text: str,
    session: Annotated[str | None, typer.Option(help="Continue this session; a new one when left out.")] = None,
    user: Annotated[str | None, typer.Option(help="On behalf of this user.")] = None,
    key: Annotated[str | None, typer.Option("--idempotency-key", help="The same key gives the same task.")] = None,
    when_busy: Annotated[
        str, typer.Option(help="While a task runs: queue, steer (reach it) or interrupt (end it).")
    ] = "queue",
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the result and print it.")] = False,
) -> None:
    """Give an agent one input. Once the task id is printed, the task is durable."""
    with connected() as client:
        busy = cast(WhenBusy, when_busy)  # the database says which are allowed
        task = client.enqueue(agent, text, session=session, user=user, idempotency_key=key, when_busy=busy)
        accepted = f"task {task.id} accepted in session {task.session_id}"
        console.print(accepted, style="dim" if wait else None, markup=False)
        if not living_workers(client):
            print("No worker is alive, so it waits. Start one: perdure start", file=sys.stderr)
        if wait:
            if task.settled_status() == "waiting":
                print(f"It waits for a person. Look: perdure show {task.session_id}", file=sys.stderr)
            answer = task.result()
            console.print(answer if isinstance(answer, str) else brief(answer, 100_000), markup=False)


def approve(
    task: str,
    call: str,
    arguments: Annotated[str | None, typer.Option(help="Other arguments, as a JSON object.")] = None,
) -> None:
    """Let a call that waits for a person run, with other arguments if you give them."""
    try:
        edited = json.loads(arguments) if arguments is not None else None
    except ValueError as error:
        raise typer.BadParameter(f"no JSON: {error}", param_hint="--arguments") from None
    if edited is not None and not isinstance(edited, dict):
        raise typer.BadParameter("a JSON object is needed", param_hint="--arguments")
    with connected() as client:
        _say_next(client.approve(task, call, arguments=edited))


def deny(task: str, call: str, reason: Reason = None) -> None:
    """Refuse a call that waits for a person."""
    with connected() as client:
        _say_next(client.deny(task, call, reason=reason))


def _say_next(following: Task | None) -> None:
    if following is None:
        console.print("Recorded. Other calls of this task still wait for an answer.")
    else:
        console.print(f"Recorded. Task {following.id} goes on.")


def chat(
    session: Annotated[str | None, typer.Argument(help="Continue this session; a new one when left out.")] = None,
    agent: Annotated[str, typer.Option(help="With whom, for a new session.")] = "assistant",
    user: Annotated[str | None, typer.Option(help="On behalf of this user.")] = None,
) -> None:
    """Talk to an agent. Leave with Ctrl-D; come back with: perdure chat SESSION."""
    with open_home(read_settings()), a_worker(), connected() as client:
        name = session or f"chat-{os.urandom(4).hex()}"
        with contextlib.suppress(NotFound):
            agent = client.session(name).read().agent
        console.print(f"Session {name} with {agent}. Leave with Ctrl-D.", style="dim", markup=False)
        while True:
            try:
                text = console.input("[bold cyan]you[/]    ")
            except EOFError:
                console.print(f"\nTo go on: perdure chat {name}", style="dim", markup=False)
                return
            if not text.strip():
                continue
            try:
                answer_to(client, client.enqueue(agent, text, session=name, user=user))
            except PerdureError as error:
                console.print(str(error), style="red", markup=False)


def answer_to(client: AgentClient, task: Task) -> None:
    """Print the answer, asking the person what the agent asks them."""
    while True:
        with console.status("…"):
            state = task.settled_status()
        for notice in client.session(task.session_id).notices():
            if notice.task_id == task.id:
                console.print(f"notice {notice.notice_id}  {harmless(notice.body)}", style="yellow", markup=False)
        if state != "waiting":
            break
        for question in task.questions():
            console.print(
                f"{question.tool}({brief(question.arguments)}): {question.reason}", style="yellow", markup=False
            )
            if question.kind == "question":
                client.answer(task.id, question.call_id, typer.prompt("Answer"))
            elif typer.confirm("Approve?"):
                client.approve(task.id, question.call_id)
            else:
                client.deny(task.id, question.call_id, reason=typer.prompt("Reason", default="") or None)
        task = task.continuation() or task
    try:
        console.print(f"[bold green]agent[/]  {_plain(task)}")
    except TaskFailed as error:
        console.print(str(error), style="red", markup=False)


def _plain(task: Task) -> str:
    from rich.markup import escape

    answer = task.result()
    return escape(answer if isinstance(answer, str) else brief(answer, 100_000))


@contextlib.contextmanager
def a_worker() -> Iterator[None]:
    """Somebody to answer: the workers there are, or one of our own for as long as we talk."""
    if _somebody_is_there():
        yield
        return
    with tempfile.TemporaryFile("w+") as said:
        own = subprocess.Popen(
            [sys.executable, "-m", "agent", "worker"],
            env={**os.environ, "PERDURE_PORT": "0"},
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )
        try:
            assert own.stdout is not None
            if not own.stdout.readline():
                said.seek(0)
                raise PerdureError(said.read().strip().removeprefix("perdure: ").splitlines()[0])
            yield
        finally:
            own.terminate()
            own.wait()


def _somebody_is_there() -> bool:
    try:
        with connected() as client:
            return bool(living_workers(client))
    except Unusable:
        return False
