"""An agent with tools of each kind. Serve it: PERDURE_AGENTS=examples.support:support perdure start

It carries a scripted model so that it runs without a key; give it a real one with PERDURE_MODEL, or in the code.
"""

import json
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from agent import effect, idempotency_key, pure

LEDGER = Path("refunds.jsonl")
"""Stands for the payment provider, which remembers the keys it has seen."""


def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    answered = sum(part.part_kind == "tool-return" for message in messages for part in message.parts)
    match answered:
        case 0:
            return ModelResponse(parts=[ToolCallPart("look_up", {"order": "17"})])
        case 1:
            return ModelResponse(parts=[ToolCallPart("refund", {"order": "17", "cents": 1200})])
        case _:
            return ModelResponse(parts=[TextPart("Order 17 is refunded.")])


support = Agent(FunctionModel(script), name="support", instructions="Help with orders.")


@support.tool_plain
@pure
def look_up(order: str) -> str:
    """Reads only: after a crash it simply runs again."""
    return f"order {order}: 12.00, paid"


def was_refunded(order: str) -> str | None:
    """Asked when a crash leaves it open whether a refund happened: something means yes, nothing means no."""
    seen = [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
    return f"order {order} was refunded" if any(line["key"] == idempotency_key() for line in seen) else None


@support.tool_plain
@effect(in_doubt="verify", verify=was_refunded)
def refund(order: str, cents: int) -> str:
    """Changes the world: never run twice silently."""
    with LEDGER.open("a") as ledger:
        ledger.write(json.dumps({"key": idempotency_key(), "order": order, "cents": cents}) + "\n")
    return f"order {order} was refunded"
