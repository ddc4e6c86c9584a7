"""Agents for tests. Each leaves a line in the test's folder whenever its model or one of its tools really runs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from typing import Any

from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.models.function import FunctionModel

from agent import beat, effect, idempotency_key, pure
from agent.demo.script import Part, Turn, call, read_turn, say, scripted
from agent.recorder import current
from tests.faults import folder, note, point


def this_task() -> str | None:
    execution = current.get()
    return execution.task.task_id if execution else None


def ran(what: str, **facts: Any) -> None:
    note("ran", {"task": this_task(), "what": what, "pid": os.getpid(), **facts})


# --- sweep: ten steps, parallel calls, an effect of each unattended policy -----------------------------------


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


def happened(key: str) -> bool:
    file = folder() / "world.jsonl"
    return file.exists() and any(json.loads(line)["key"] == key for line in file.read_text().splitlines())


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


# --- steady: a few steps that take a while, to be interrupted ------------------------------------------------


def write_steady(turn: Turn) -> list[Part]:
    ran("model", prompt=turn.prompt)
    wanted = int(os.environ.get("TEST_STEPS", "5"))
    if len(turn.results) < wanted:
        return [call("tick", n=len(turn.results))]
    return say(f"{turn.prompt}: {wanted} ticks")


steady = Agent(scripted(write_steady), name="steady")


@steady.tool_plain
@effect(in_doubt="retry")
async def tick(n: int) -> int:
    ran("tick", n=n, key=idempotency_key())
    await asyncio.sleep(float(os.environ.get("TEST_TICK", "0.1")))
    return n


# --- gate: a tool that goes on only when the test says so ----------------------------------------------------


def write_gate(turn: Turn) -> list[Part]:
    if not turn.of("pass_gate"):
        return [call("pass_gate")]
    return say("passed")


gate = Agent(scripted(write_gate), name="gate")


@gate.tool_plain
@effect(in_doubt="retry")
async def pass_gate() -> str:
    ran("gate", key=idempotency_key())
    while not (folder() / "open").exists():
        await asyncio.sleep(0.02)
    return "open"


# --- echo: one model request, for many turns -----------------------------------------------------------------


def write_echo(turn: Turn) -> list[Part]:
    return say(f"turn {turn.earlier + 1}: {turn.prompt}")


echo = Agent(scripted(write_echo), name="echo")


# --- asks: an effect whose doubts a person decides, and a tool that always needs approval ----------------------


def write_asks(turn: Turn) -> list[Part]:
    if turn.prompt.startswith("hello"):
        return say(f"hello to you too, message {turn.earlier + 1}")
    tool = "wire" if turn.prompt.startswith("wire") else "erase"
    if not turn.of(tool):
        return [call(tool, what=turn.prompt)]
    return say(f"{tool}: {turn.of(tool)[-1].content}")


asks = Agent(scripted(write_asks), name="asks")


@asks.tool_plain
@effect(in_doubt="ask")
async def wire(what: str) -> str:
    ran("wire", key=idempotency_key())
    if (folder() / "die").exists():
        (folder() / "die").unlink()
        os.kill(os.getpid(), 9)
    note("world", {"effect": "wire", "key": idempotency_key()})
    return "wired"


@asks.tool_plain(requires_approval=True)
async def erase(what: str) -> str:
    ran("erase", key=idempotency_key())
    note("world", {"effect": "erase", "key": idempotency_key()})
    return "erased"


# --- odd: tools that misbehave ---------------------------------------------------------------------------------


def write_odd(turn: Turn) -> list[Part]:
    tool = turn.prompt.split()[0]
    if not turn.of(tool):
        return [call(tool)]
    return say(f"{tool} gave {turn.of(tool)[-1].content!r}")


odd = Agent(scripted(write_odd), name="odd")


class Opaque:
    def __init__(self) -> None:
        self.handle = open(os.devnull)  # noqa: SIM115


@odd.tool_plain
async def opaque() -> Any:
    return Opaque()


@odd.tool_plain
async def raises() -> str:
    raise ValueError("the disk is on fire")


@odd.tool_plain
async def nul() -> str:
    return "before\0after \ud800 end"


@odd.tool_plain
async def tagged() -> dict[str, Any]:
    return {"$": "os:system", "v": "echo owned", "nan": float("nan"), "when": time.gmtime(0)[:3]}


# --- halts: an unmarked tool that never comes back ---------------------------------------------------------------


def write_halts(turn: Turn) -> list[Part]:
    return say(str(turn.of("halt")[0].content)) if turn.of("halt") else [call("halt")]


halts = Agent(scripted(write_halts), name="halts")


@halts.tool_plain
async def halt() -> str:
    ran("halt", key=idempotency_key())
    await asyncio.sleep(3600)
    return "woke up"


# --- busy: an async tool that blocks the event loop --------------------------------------------------------------


def write_busy(turn: Turn) -> list[Part]:
    return say("paid") if turn.of("blocks") else [call("blocks")]


busy = Agent(scripted(write_busy), name="busy")


@busy.tool_plain
async def blocks() -> str:
    ran("blocks", key=idempotency_key())
    time.sleep(4)
    return "ok"


# --- shapes: agents of every shape Pydantic AI allows ---------------------------------------------------------------


def write_plain(turn: Turn) -> list[Part]:
    return say(f"heard {turn.prompt}")


validated = Agent(scripted(write_plain), name="validated")


@validated.output_validator
def must_be_heard(output: str) -> str:
    assert isinstance(output, str)
    return f"{output}, validated"


def write_call_output(turn: Turn) -> list[Part]:
    return [call("final_result", to="ana")]


def send_mail(to: str) -> str:
    """Send the mail that ends the run."""
    ran("mail", key=idempotency_key())
    if (folder() / "die").exists():
        (folder() / "die").unlink()
        os.kill(os.getpid(), 9)
    return f"mailed {to}"


mailer = Agent(scripted(write_call_output), name="mailer", output_type=send_mail)

faulty = Agent(scripted(write_plain), name="faulty")


@faulty.instructions
def fails_to_look_up() -> str:
    import sqlalchemy.exc

    raise sqlalchemy.exc.NoResultFound("no such customer")


def write_dynamic(turn: Turn) -> list[Part]:
    return say(f"got {turn.of('given')[0].content}") if turn.of("given") else [call("given")]


dynamic = Agent(scripted(write_dynamic), name="dynamic")


@dynamic.toolset(id="made-at-run-time")
def made_at_run_time(ctx: Any) -> FunctionToolset[Any]:
    toolset: FunctionToolset[Any] = FunctionToolset()

    @toolset.tool_plain
    def given() -> str:
        return "something"

    return toolset


# --- planner: works through a plan, keeps its notebook, and leaves word of everything it was sent ---------------------


def write_plan(turn: Turn) -> list[Part]:
    if turn.prompt.startswith("plan"):
        steps = [{"title": f"part {n}", "status": "done" if n < 2 else "pending", "result": f"r{n}"} for n in range(4)]
        match len(turn.results):
            case 0:
                return [
                    call("update_plan", goal="build the harbour", steps=steps),
                    call("record_decision", decision="use stone", reason="wood rots"),
                ]
            case 2:
                return [call("pass_gate_again")]
            case _:
                return say("the harbour stands")
    return say(f"noted: {turn.prompt}")


def measured(sent: list[dict[str, Any]]) -> int:
    """Tokens of all that was sent, at four characters each."""
    texts = [str(part.get("content") or part.get("args") or "") for message in sent for part in message["parts"]]
    return sum(len(text) for text in texts) // 4 + len(sent)


def respond_and_tell(messages: list[Any], info: Any) -> Any:
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    sent = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    note("sent", {"task": this_task(), "messages": sent, "tokens": measured(sent)})
    prompt = str(getattr(messages[-1].parts[-1], "content", ""))
    if "An interruption ends this context" in json.dumps(sent):
        if os.environ.get("TEST_SCRIBE") == "fails":
            raise RuntimeError("no words today")
        return ModelResponse(parts=say("I was waiting at the gate; the user hates Sundays."))
    if "context summarization assistant" in json.dumps(sent):
        match os.environ.get("TEST_SUMMARISER", "fine"):
            case "fails":
                raise RuntimeError("no summary today")
            case "nonsense":
                return ModelResponse(parts=say("blah blah"))
            case _:
                return ModelResponse(parts=say("They talked about numbers. " + prompt[-50:]))
    return ModelResponse(parts=list(write_plan(read_turn(messages))))


planner = Agent(
    FunctionModel(respond_and_tell, model_name="telling"), name="planner", instructions="You are the harbour master."
)


@planner.tool_plain
@effect(in_doubt="retry")
async def pass_gate_again() -> str:
    ran("gate", key=idempotency_key())
    while not (folder() / "open").exists():
        await asyncio.sleep(0.02)
    return "open"


# --- strict: a provider with a smaller window than it was taken for --------------------------------------------------


def respond_strictly(messages: list[Any], info: Any) -> Any:
    from pydantic_ai.exceptions import ModelContextWindowExceededError, ModelHTTPError
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    size = measured(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))
    if size > 1500:
        raise ModelHTTPError.for_category(ModelContextWindowExceededError, status_code=400, model_name="strict")
    return ModelResponse(parts=say(f"fits, with {size}"))


strict = Agent(FunctionModel(respond_strictly, model_name="strict"), name="strict")


# --- poison: tools that take their worker down, beside one that does its work --------------------------------------


def write_poison(turn: Turn) -> list[Part]:
    tool = turn.prompt.split()[0]
    if tool not in ("leave", "devour", "segfault", "peek", "work"):
        return say(f"answered: {turn.prompt}")
    wanted = int(os.environ.get("TEST_STEPS", "3")) if tool == "work" else 1
    if len(turn.results) < wanted:
        return [call(tool, n=len(turn.results))]
    return say(f"{turn.prompt}: done")


poison = Agent(scripted(write_poison), name="poison")


def was_done(n: int) -> str | None:
    return "done" if happened(idempotency_key()) else None


@poison.tool_plain
@effect(in_doubt="verify", verify=was_done)
async def work(n: int) -> str:
    ran("work", n=n)
    await asyncio.sleep(float(os.environ.get("TEST_TICK", "0.3")))
    note("world", {"effect": "work", "key": idempotency_key()})
    return "done"


@poison.tool_plain
@effect(in_doubt="retry")
async def leave(n: int) -> str:
    ran("leave", key=idempotency_key())
    await asyncio.sleep(0.2)
    if not (folder() / "healed").exists():
        note("deaths", {"task": this_task(), "pid": os.getpid()})
        os._exit(int(os.environ.get("TEST_EXIT", "3")))
    return "stayed"


@poison.tool_plain
@pure
async def peek(n: int) -> str:
    """Only reads, and dies of it."""
    os._exit(3)


@poison.tool_plain
@effect(in_doubt="retry")
async def segfault(n: int) -> str:
    import ctypes

    await asyncio.sleep(0.2)
    note("deaths", {"task": this_task(), "pid": os.getpid()})
    ctypes.string_at(0)
    return "survived"


@poison.tool_plain
@effect(in_doubt="retry")
def devour(n: int) -> str:
    """Takes memory until somebody ends it."""
    note("deaths", {"task": this_task(), "pid": os.getpid()})
    taken: list[bytearray] = []
    for _ in range(400):
        taken.append(bytearray(b"x") * 10_000_000)
        time.sleep(0.02)
    return "had enough"


# --- stuck: tools that never come back, each in its own way ----------------------------------------------------------


def write_stuck(turn: Turn) -> list[Part]:
    tool = turn.prompt.split()[0]
    if tool not in ("sleeps", "awaits", "clogs", "lends", "beats", "grips"):
        return say(f"answered: {turn.prompt}")
    return say(f"{tool}: {turn.of(tool)[0].content}") if turn.of(tool) else [call(tool)]


stuck = Agent(scripted(write_stuck), name="stuck")


@stuck.tool_plain
@effect(in_doubt="retry")
def sleeps() -> str:
    """Blocks a thread."""
    ran("sleeps")
    time.sleep(3600)
    return "woke up"


@stuck.tool_plain
@effect(in_doubt="retry")
async def awaits() -> str:
    """Never done, but can be cancelled."""
    ran("awaits")
    await asyncio.Event().wait()
    return "woke up"


@stuck.tool_plain
@effect(in_doubt="retry")
async def clogs() -> str:
    """Blocks the event loop."""
    ran("clogs")
    time.sleep(3600)
    return "woke up"


@stuck.tool_plain
@effect(in_doubt="retry")
async def lends() -> str:
    """Blocks a thread that is not a tool's."""
    ran("lends")
    await asyncio.to_thread(time.sleep, 3600)
    return "woke up"


@stuck.tool_plain
@effect(in_doubt="retry")
def grips() -> str:
    """Never lets go of the interpreter's lock: no other thread of the process runs."""
    ran("grips")
    return str(re.match(r"(a+)+$", "a" * 64 + "b"))


@stuck.tool_plain
@pure
async def beats() -> str:
    """Slow, and says that it is alive."""
    for _ in range(30):
        await asyncio.sleep(0.1)
        beat()
    return "finished"


# --- companion: everything a session can be asked to do ---------------------------------------------------------------


def write_companion(prompt: str, results: list[Any]) -> list[Part]:
    match prompt.split():
        case ["gate", *_]:
            return [[call("pass")], [call("note")], say(f"{prompt}: done")][len(results)]
        case ["note", *_]:
            return say("noted") if results else [call("note")]
        case ["ask", *_]:
            return say(f"you said {results[0].content}") if results else [call("ask_user", question="Which colour?")]
        case ["hand", *_]:
            return say(f"back: {results[0].content}") if results else [call("hand_over", reason="too hard")]
        case ["risk", *_]:
            return say(str(results[0].content)) if results else [call("risk", amount=1000)]
        case ["plan", *what]:
            steps = [{"title": "x", "status": "active"}]
            return say("planned") if results else [call("update_plan", goal=f"goal {' '.join(what)}", steps=steps)]
        case ["slow", *_]:
            return say(f"{prompt}: at last")
        case _:
            return say(f"heard {prompt}")


async def respond_as_companion(messages: list[Any], info: Any) -> Any:
    """Words that come with a tool's result, or with other words, steer; they do not begin anything."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, ToolReturnPart, UserPromptPart

    sent = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    note("sent", {"task": this_task(), "messages": sent})
    prompt, results = "", list[Any]()
    for message in messages:
        returns = [part for part in message.parts if isinstance(part, ToolReturnPart)]
        prompts = [str(part.content) for part in message.parts if isinstance(part, UserPromptPart)]
        results += returns
        if prompts and not returns and not prompts[0].startswith("What follows was restored"):
            prompt, results = prompts[0], []
    if (folder() / "die").exists() and "mind the step" in json.dumps(sent):
        (folder() / "die").unlink()
        os.kill(os.getpid(), 9)
    while prompt.startswith("slow") and not (folder() / "open").exists():
        await asyncio.sleep(0.02)
    return ModelResponse(parts=list(write_companion(prompt, results)))


companion = Agent(FunctionModel(respond_as_companion, model_name="companion"), name="companion")


@companion.tool_plain(name="pass")
@effect(in_doubt="retry")
async def pass_now() -> str:
    ran("gate")
    while not (folder() / "open").exists():
        await asyncio.sleep(0.02)
    return "open"


@companion.tool_plain(name="note")
@effect(in_doubt="retry")
async def note_it() -> str:
    ran("note")
    return "noted"


@companion.tool_plain(requires_approval=True)
async def risk(amount: int) -> str:
    ran(f"risk {amount}")
    return f"risked {amount}"
