"""Commands that look: sessions, show, tasks, steps, tail."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, get_args

import typer
from rich.text import Text

from agent.cli.screen import (
    AsJson,
    Limit,
    ago,
    brief,
    coloured,
    connected,
    console,
    harmless,
    print_json,
    print_table,
    took,
)
from agent.client import AgentClient
from store.types import EventRow, SaidRow, SessionState, TaskRow, TaskStatus

POLL_SECONDS = 0.25
MOST_EVENTS = 1000
LAST_MESSAGES = 40
OVERLAP = timedelta(seconds=5)
"""Events of different sessions may become visible a little out of order of their time."""


def add_to(app: typer.Typer) -> None:
    for command in (sessions, show, tasks, steps, tail, notices, handoff):
        app.command()(command)


def sessions(
    user: Annotated[str | None, typer.Option(help="Only this user's.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent's.")] = None,
    state: Annotated[
        str | None, typer.Option(help="Only idle, running, waiting, paused, quarantined or closed.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Only those in which this was said.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List sessions, last active first."""
    if state is not None and state not in get_args(SessionState):
        raise typer.BadParameter(f"{state!r}; allowed are {', '.join(get_args(SessionState))}", param_hint="--state")
    with connected() as client:
        rows = client.sessions(user=user, agent=agent, state=state, text=text, limit=limit)
    if as_json:
        print_json(rows)
        return
    print_table(
        ["session", "agent", "user", "state", "open", "messages", "restarts", "active", "title"],
        [
            [row.session_id, row.agent, row.user_id or "", coloured(row.state), row.open_tasks, row.messages,
             row.restarts, ago(row.last_active_at), brief(row.title, 40)]
            for row in rows
        ],
        empty="No sessions yet. Make one: perdure send assistant hello",
    )  # fmt: skip


def show(
    session: str,
    everything: Annotated[bool, typer.Option("--all", help="The whole conversation, not its last messages.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one session: its state, its conversation, and what waits for you."""
    with connected() as client:
        seen = client.session(session)
        row, messages, questions = seen.read(), seen.messages(), seen.questions()
    if as_json:
        print_json(row)
        return
    console.print(Text(f"{row.session_id}  ·  {row.agent}  ·  ", "bold") + coloured(row.state))
    counts = f"{row.messages} messages · {row.open_tasks} open tasks · {row.restarts} restarts"
    console.print(f"{counts} · active {ago(row.last_active_at)}")
    hidden = 0 if everything else max(0, len(messages) - LAST_MESSAGES)
    if hidden:
        console.print(
            f"… {hidden} earlier messages; all of them: perdure show {session} --all", markup=False, style="dim"
        )
    for said in messages[hidden:]:
        for line in told(said):
            console.print(line)
    for question in questions:
        console.print(
            Text(f"? {question.tool}({brief(question.arguments)}) waits for you: {question.reason}", "yellow")
        )
        verbs = ("answer",) if question.kind == "question" else ("approve", "deny")
        for verb in verbs:
            console.print(f"  perdure {verb} {question.task_id} {question.call_id}", markup=False)


def told(said: SaidRow) -> list[Text]:
    """A message or a notice as lines a person reads."""
    lines: list[Text] = []
    for part in said.message.get("parts", ()):
        match part.get("part_kind"):
            case _ if said.notice_id is not None:
                lines.append(Text(f"notice {said.notice_id}  ", "bold yellow") + Text(harmless(part["content"])))
            case "user-prompt":
                lines.append(Text("you    ", "bold cyan") + Text(brief(part["content"], 2000)))
            case "text":
                lines.append(Text("agent  ", "bold green") + Text(harmless(part["content"])))
            case "tool-call":
                lines.append(Text(f"       → {part['tool_name']}({brief(part['args'])})", "dim"))
            case "tool-return":
                lines.append(Text(f"       ← {brief(part['content'], 100)}", "dim"))
            case _:
                pass
    return lines


def tasks(
    session: Annotated[str | None, typer.Option(help="Only this session's.")] = None,
    status: Annotated[
        str | None, typer.Option(help="Only queued, running, waiting, done, failed, cancelled or dead.")
    ] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List tasks, newest first."""
    if status is not None and status not in get_args(TaskStatus):
        raise typer.BadParameter(f"{status!r}; allowed are {', '.join(get_args(TaskStatus))}", param_hint="--status")
    with connected() as client:
        rows = client.tasks(session=session, status=status, limit=limit)
    if as_json:
        print_json(rows)
        return
    print_table(
        ["task", "session", "agent", "status", "steps", "crashes", "accepted", "input", "result"],
        [
            [row.task_id, row.session_id, row.agent, state_of(row), row.steps, row.crashes, ago(row.accepted_at),
             brief(row.input, 30), brief(row.error or row.output, 50)]
            for row in rows
        ],
        empty="No tasks.",
    )  # fmt: skip


def state_of(row: TaskRow) -> Text:
    """The status, and what a task that waits is waiting for."""
    if row.runs_after is None:
        return coloured(row.status)
    known = row.runs_after.year < 9999
    return coloured(row.status) + Text(f" until {row.runs_after.astimezone():%H:%M:%S}" if known else ", held", "dim")


def steps(task: str, as_json: AsJson = False) -> None:
    """List a task's recorded steps with their inputs and outputs."""
    with connected() as client:
        found = client.task(task)
        found.read()
        rows = found.steps()
    if as_json:
        print_json(rows)
        return
    print_table(
        ["step", "name", "outcome", "took", "input", "output"],
        [
            [row.step, row.name, coloured(row.outcome or ("failed" if row.error else "returned")),
             took(row.started_at, row.finished_at), brief(row.input, 50), brief(row.error or row.output, 60)]
            for row in rows
        ],
        empty="No step is recorded yet.",
    )  # fmt: skip


def notices(
    session: Annotated[str | None, typer.Argument(help="One session; all of them when left out.")] = None,
    acknowledge: Annotated[int | None, typer.Option(help="Acknowledge this notice of the session.")] = None,
    correction: Annotated[str | None, typer.Option(help="With a correction, which the agent is told.")] = None,
    as_json: AsJson = False,
) -> None:
    """List what users were told about interruptions, or answer it."""
    with connected() as client:
        if acknowledge is not None:
            if session is None:
                raise typer.BadParameter("name the session of the notice", param_hint="SESSION")
            client.acknowledge(session, acknowledge, correction=correction)
            console.print("Acknowledged." if correction is None else "Acknowledged; the correction counts from now on.")
            return
        rows = client.notices(session)
    if as_json:
        print_json(rows)
        return
    print_table(
        ["notice", "session", "at", "kind", "acknowledged", "body"],
        [
            [row.notice_id, row.session_id, ago(row.at), row.kind, ago(row.acknowledged_at), brief(row.body, 400)]
            for row in rows
        ],
        empty="No interruption has touched a session.",
    )


def handoff(session: str, as_json: AsJson = False) -> None:
    """Write a handoff of the session from its record, and print it."""
    import asyncio

    from steps.handoff import write_handoff
    from store.database import Database

    async def write(url: str) -> None:
        async with Database(url, size=1) as database:
            occasion = f"human:{session}:{datetime.now(UTC).isoformat()}"
            await write_handoff(database, session=session, task=None, reason="human", occasion=occasion)

    with connected() as client:
        asyncio.run(write(client.url))
        row = client.session(session).handoff()
    assert row is not None
    if as_json:
        print_json(row)
    else:
        console.print(row.markdown, markup=False)


def tail(
    session: Annotated[str | None, typer.Argument(help="One session; all of them when left out.")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Go on until Ctrl-C.")] = True,
    as_json: AsJson = False,
) -> None:
    """Follow the journal as it is written."""
    with connected() as client:
        if session is not None:
            client.session(session).read()
        for event in events(client, session, follow=follow):
            if as_json:
                typer.echo(json.dumps(event.model_dump(mode="json"), ensure_ascii=False))
            else:
                console.print(line_of(event, with_session=session is None))


def events(client: AgentClient, session: str | None, *, follow: bool) -> Iterator[EventRow]:
    seen: dict[str, set[int]] = {}
    after, since = 0, datetime.now(UTC) - timedelta(minutes=5)
    while True:
        batch = client.events(session=session, after=after, since=since)
        for event in batch:
            known = seen.setdefault(event.session_id, set())
            if event.seq not in known:
                known.add(event.seq)
                yield event
        if batch:
            is_full = len(batch) == MOST_EVENTS
            after = batch[-1].seq if session else 0
            since = max(since, batch[-1].at if is_full else batch[-1].at - OVERLAP)
            if is_full:
                continue
        elif not follow:
            return
        if not follow and session is None:
            return
        if follow:
            time.sleep(POLL_SECONDS)


def line_of(event: EventRow, *, with_session: bool) -> Text:
    facts = {key: value for key, value in event.data.items() if value is not None}
    head = f"{event.at.astimezone():%H:%M:%S.%f}"[:-3]
    where = f"  {event.session_id[:18]}" if with_session else ""
    return Text(f"{head}{where}  ", "dim") + Text(f"{event.seq:>4}  {event.kind:<20}") + Text(brief(facts, 110), "dim")
