"""Ten steps, with parallel calls and an effect of each policy that needs nobody."""

from __future__ import annotations

from pydantic_ai import Agent

from agent import effect, idempotency_key, pure
from agent.demo.script import Part, Turn, call, say, scripted
from tests.agents.traces import happened, ran, this_task
from tests.faults import note, point


def write_sweep(turn: Turn) -> list[Part]:
    ran(f"model {len(turn.results)}")
    point(this_task(), "inside model")
    match len(turn.results):
        case 0:
            return [call("look", what="a"), call("look", what="b"), call("keep", what="c")]
        case 3:
            return [call("pay", cents=100)]
        case 4:
            return [call("mail", to="ana"), call("look", what="d")]
        case _:
            looked = sorted(str(part.content) for part in turn.of("look"))
            return say(f"saw {', '.join(looked)}; kept {turn.of('keep')[0].content}; paid {turn.of('pay')[0].content}")


sweep = Agent(scripted(write_sweep), name="sweep")


@sweep.tool_plain
@pure
async def look(what: str) -> str:
    ran(f"look {what}")
    point(this_task(), "inside look")
    return what.upper()


@sweep.tool_plain
@effect(in_doubt="retry")
async def keep(what: str) -> str:
    ran(f"keep {what}", key=idempotency_key())
    point(this_task(), "inside keep, before")
    if not happened(idempotency_key()):
        note("world", {"effect": "keep", "key": idempotency_key()})
    point(this_task(), "inside keep, after")
    return what.upper()


def was_paid(cents: int) -> str | None:
    return f"{cents}" if happened(idempotency_key()) else None


@sweep.tool_plain
@effect(in_doubt="verify", verify=was_paid)
async def pay(cents: int) -> str:
    ran(f"pay {cents}", key=idempotency_key())
    point(this_task(), "inside pay, before")
    note("world", {"effect": "pay", "key": idempotency_key()})
    point(this_task(), "inside pay, after")
    return f"{cents}"


@sweep.tool_plain
async def mail(to: str) -> str:
    """Unmarked: an effect whose doubts are reported."""
    ran(f"mail {to}", key=idempotency_key())
    point(this_task(), "inside mail, before")
    note("world", {"effect": "mail", "key": idempotency_key()})
    point(this_task(), "inside mail, after")
    return "sent"
