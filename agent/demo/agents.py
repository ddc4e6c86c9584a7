"""Two agents to try Perdure with: a researcher that works through a plan, and an assistant to talk to."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from pydantic_ai import Agent

from agent.demo.script import Part, Turn, call, say, scripted
from agent.tools import effect, idempotency_key, pure

SOURCES = {
    "almanac": "Lighthouses were lit with oil until electricity reached the coasts in the 1920s.",
    "survey": "Of 312 lighthouses in the survey, 281 still shine; 31 are museums.",
    "interview": "The last keeper on the north shore left in 1987: 'The light stayed, only I went.'",
    "archive": "The oldest tower in the archive dates from 1669.",
    "atlas": "A light on a cliff of 60 metres is seen from about 32 kilometres.",
}


def pace() -> float:
    """Seconds a tool takes, so that a person can follow, or pull the plug."""
    return float(os.environ.get("PERDURE_DEMO_PACE", "0.25"))


def outbox() -> Path:
    """Where the outside world of the demo is: what was published stays published."""
    return Path(os.environ.get("PERDURE_HOME", ".perdure")) / "demo-outbox.jsonl"


def find_in_outbox(key: str) -> dict[str, Any] | None:
    if not outbox().exists():
        return None
    lines = [json.loads(line) for line in outbox().read_text("utf-8").splitlines()]
    return next((line for line in lines if line["key"] == key), None)


def put_in_outbox(kind: str, text: str) -> None:
    outbox().parent.mkdir(parents=True, exist_ok=True)
    with outbox().open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": idempotency_key(), "kind": kind, "text": text}) + "\n")


def write_research(turn: Turn) -> list[Part]:
    topic = turn.prompt.strip().rstrip(".?!") or "lighthouses"
    if not turn.of("list_sources"):
        return [call("list_sources", topic=topic)]
    if len(turn.of("read_source")) < 3:
        return [call("read_source", name=name) for name in ("almanac", "survey", "interview")]
    if not turn.of("save_note"):
        return [call("save_note", title="Findings", text="Most lights still shine; the keepers have left.")]
    if len(turn.of("read_source")) < 5:
        return [call("read_source", name=name) for name in ("archive", "atlas")]
    if not turn.of("check_fact"):
        return [call("check_fact", claim="281 of 312 still shine")]
    if not turn.of("publish_report"):
        return [call("publish_report", title=topic, body="The light stayed, only the keepers went.")]
    published = turn.of("publish_report")[0].content
    return say(f"Report on “{topic}” from 5 sources, with 1 note and 1 checked fact. {published}")


researcher = Agent(
    scripted(write_research, lambda: pace() / 5),
    name="researcher",
    description="Works through a research plan of a dozen steps and publishes a report (scripted, offline).",
    instructions="Research the topic from every source, keep notes, check a fact, publish once.",
)


@researcher.tool_plain
@pure
async def list_sources(topic: str) -> list[str]:
    """The sources there are."""
    await asyncio.sleep(pace())
    return list(SOURCES)


@researcher.tool_plain
@pure
async def read_source(name: str) -> str:
    """Read one source."""
    await asyncio.sleep(pace())
    return SOURCES[name]


@researcher.tool_plain
@pure
async def check_fact(claim: str) -> str:
    """Check a claim against the sources."""
    await asyncio.sleep(pace())
    return f"confirmed by the survey: {claim}"


@researcher.tool_plain
@effect(in_doubt="retry")
async def save_note(title: str, text: str) -> str:
    """Keep a note. Safe to run again: a note is kept once under its key."""
    await asyncio.sleep(pace())
    if find_in_outbox(idempotency_key()) is None:
        put_in_outbox("note", f"{title}: {text}")
    return f"note “{title}” kept"


def was_published() -> str | None:
    found = find_in_outbox(idempotency_key())
    return f"It was published before the interruption: “{found['text']}”." if found else None


@researcher.tool_plain
@effect(in_doubt="verify", verify=was_published)
async def publish_report(title: str, body: str) -> str:
    """Publish a report, for everyone to see. Publishing twice would be embarrassing."""
    put_in_outbox("report", title)
    await asyncio.sleep(8 * pace())
    return f"It was published: “{title}”."


def write_reply(turn: Turn) -> list[Part]:
    text = turn.prompt.strip()
    if "remind" in text.lower() and not turn.of("make_reminder"):
        return [call("make_reminder", text=text)]
    if turn.of("make_reminder"):
        return say(f"Done: {turn.of('make_reminder')[0].content}.")
    if not turn.earlier:
        return say(
            f"You said: “{text}”. I am a scripted assistant, here so that you can try Perdure without a key. Say"
            " “remind me …” to see a tool, or stop me with kill -9 and write again: I will remember."
        )
    return say(f"You said: “{text}”. That is message {turn.earlier + 1} of our conversation, and I have them all.")


assistant = Agent(
    scripted(write_reply, lambda: pace() / 5),
    name="assistant",
    description="Answers at once, without a key (scripted, offline).",
    instructions="Be brief.",
)


@assistant.tool_plain
@effect(in_doubt="retry")
async def make_reminder(text: str) -> str:
    """Keep a reminder."""
    await asyncio.sleep(pace())
    if find_in_outbox(idempotency_key()) is None:
        put_in_outbox("reminder", text)
    return "I will remind you"
