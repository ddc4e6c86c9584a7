"""Works through a plan, keeps its notebook, and leaves word of everything it was sent; and a provider with a
smaller window than it was taken for."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelContextWindowExceededError, ModelHTTPError
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models.function import FunctionModel

from agent import effect, idempotency_key
from agent.demo.script import Part, Turn, call, read_turn, say
from tests.agents.traces import measured, ran, this_task
from tests.faults import folder, note

# --- planner: works through a plan, keeps its notebook, and leaves word of everything it was sent ----------------


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


def respond_and_tell(messages: list[Any], info: Any) -> Any:

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
            case "forgetful":  # a summary that reads well, and leaves out the one rule that was laid down
                return ModelResponse(parts=say("The user counted turns. Goal: the last one. Nothing else was agreed."))
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


# --- strict: a provider with a smaller window than it was taken for ----------------------------------------------


def respond_strictly(messages: list[Any], info: Any) -> Any:

    size = measured(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))
    if size > 1500:
        raise ModelHTTPError.for_category(ModelContextWindowExceededError, status_code=400, model_name="strict")
    return ModelResponse(parts=say(f"fits, with {size}"))


strict = Agent(FunctionModel(respond_strictly, model_name="strict"), name="strict")
