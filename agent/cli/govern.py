"""Commands that govern sessions: pause, people, branches, their end and their travels."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from agent.cli.look import told
from agent.cli.screen import AsJson, brief, connected, console, print_json
from agent.client import AgentClient
from store.errors import InvalidInput
from store.types import EffectRow, SaidRow

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
As = Annotated[str, typer.Option("--as", help="Who you are.")]


def add_to(app: typer.Typer) -> None:
    for command in (pause, resume, cancel, answer, say, close, reopen, fork, rewind, diff, delete, export):
        app.command()(command)
    app.command("take-over")(take_over)
    app.command("give-back")(give_back)
    app.command("import")(import_)


def pause(session: str) -> None:
    """Accept inputs and run none; a running task stops at its next step."""
    with connected() as client:
        client.pause(session)
    console.print(f"Paused. To go on: perdure resume {session}", markup=False)


def resume(session: str) -> None:
    """Let a paused session go on."""
    with connected() as client:
        client.resume(session)
    console.print("It goes on.")


def cancel(task: str, reason: Annotated[str | None, typer.Option(help="Why, for whoever asks later.")] = None) -> None:
    """End a task: at once when it has not begun, before its next step when it runs."""
    with connected() as client:
        client.cancel(task, reason=reason)
        console.print(f"Task {task} is {client.task(task).status()}.", markup=False)


def answer(task: str, call: str, text: str) -> None:
    """Answer a question that an agent asked."""
    with connected() as client:
        following = client.answer(task, call, text)
    console.print(
        f"Recorded. Task {following.id} goes on." if following else "Recorded. Others still wait.", markup=False
    )


def take_over(session: str, person: As = "operator") -> None:
    """Answer in the agent's place from now on."""
    with connected() as client:
        client.take_over(session, person)
    console.print(f"Yours. Speak: perdure say {session} TEXT. Give it back: perdure give-back {session}", markup=False)


def say(session: str, text: str, person: As = "operator") -> None:
    """Say something in the agent's place, in a session you took over."""
    with connected() as client:
        client.say(session, person, text)
    console.print("Said.")


def give_back(
    session: str, note: Annotated[str | None, typer.Option(help="What the agent should know.")] = None
) -> None:
    """Give a session you took over back to its agent."""
    with connected() as client:
        client.give_back(session, note=note)
    console.print("Given back.")


def close(session: str) -> None:
    """Accept nothing more in a session; everything stays."""
    with connected() as client:
        client.close_session(session)
    console.print(f"Closed. To go on: perdure reopen {session}", markup=False)


def reopen(session: str) -> None:
    """Open a closed session again."""
    with connected() as client:
        client.reopen(session)
    console.print("Open.")


def fork(
    session: str,
    at: Annotated[int | None, typer.Option(help="The place in the journal; its end when left out.")] = None,
    new: Annotated[str | None, typer.Option("--session", help="The id of the new session.")] = None,
    yes: Yes = False,
) -> None:
    """Make a session with this one's past up to a place; both go their own ways from there."""
    with connected() as client:
        if at is not None:
            confirm(client.effects_after(session, at), yes)
        console.print(client.fork(session, at=at, session=new).id, markup=False)


def rewind(session: str, to: Annotated[int, typer.Option(help="The place in the journal.")], yes: Yes = False) -> None:
    """Move a session back to a place in its journal; what is undone stays in the journal."""
    with connected() as client:
        confirm(client.effects_after(session, to), yes)
        client.rewind(session, to=to)
    console.print("It is back there.")


def confirm(effects: list[EffectRow], yes: bool) -> None:
    """Say first what happened outside: nothing here undoes it, and nothing runs it again."""
    if not effects:
        return
    console.print("These happened outside after that place, and are not undone:", style="yellow")
    for effect in effects:
        console.print(f"  {effect.seq:>5}  {effect.tool}({brief(effect.arguments)})  {effect.state}", markup=False)
    if not yes and not typer.confirm("Go on?"):
        raise typer.Exit(1)


def diff(one: str, other: str, as_json: AsJson = False) -> None:
    """Show where two sessions part, and what each said and did from there."""
    with connected() as client:
        shared, left, right = parted(client, one, other)
        mine, theirs = ({file.path: file.sha256 for file in client.session(name).files()} for name in (one, other))
    if as_json:
        print_json([*left, *right])
        return
    console.print(f"{shared} messages are the same.")
    for name, messages in ((one, left), (other, right)):
        console.print(f"{name}: {len(messages)} more", style="bold", markup=False)
        for stored in messages:
            for line in told(stored):
                console.print(line)
    for path in sorted({path for path, _ in mine.items() ^ theirs.items()}):
        where = one if path not in theirs else other if path not in mine else "both, with different contents"
        console.print(f"file {path}: in {where}", markup=False)


def parted(client: AgentClient, one: str, other: str) -> tuple[int, list[SaidRow], list[SaidRow]]:
    """How many messages two sessions share at their beginning, and what follows in each."""
    client.session(one).read(), client.session(other).read()
    left, right = (
        [said for said in client.session(each).messages() if said.notice_id is None] for each in (one, other)
    )
    shared = 0
    while shared < min(len(left), len(right)) and left[shared].message == right[shared].message:
        shared += 1
    return shared, left[shared:], right[shared:]


def delete(session: str, yes: Yes = False) -> None:
    """Delete a session for good, with everything that belongs to it."""
    with connected() as client:
        row = client.session(session).read()
        if not yes and not typer.confirm(f"Delete {session} with its {row.messages} messages for good?"):
            raise typer.Exit(1)
        client.delete_session(session)
    console.print("Gone.")


def export(session: str) -> None:
    """Print a session as one JSON document."""
    with connected() as client:
        typer.echo(json.dumps(client.export_session(session), ensure_ascii=False))


def import_(
    file: Annotated[str, typer.Argument(help="A file made by export; - for standard input.")],
    session: Annotated[str | None, typer.Option(help="Another id for it.")] = None,
    user: Annotated[str | None, typer.Option(help="Whose it is here.")] = None,
) -> None:
    """Take in a session that was exported."""
    try:
        document = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{file} cannot be read as JSON: {error}") from error
    with connected() as client:
        console.print(client.import_session(document, session=session, user=user).id, markup=False)
