"""Tool calls. Each is one recorded step whose record holds its input beside its output."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    ToolFailed,
    ToolFailedError,
    ToolRetryError,
)

from store.plain import CannotStore
from store.types import InDoubtPolicy, Json

Outcome = Literal["returned", "retry", "failed", "raised", "asked", "deferred", "unknown"]


class ToolRecord(BaseModel):
    """What is recorded of a call, and all that a recovered task will ever know of it."""

    model_config = ConfigDict(frozen=True)

    tool: str
    call_id: str
    idempotency_key: str
    input: Json
    outcome: Outcome
    output: Json = None
    note: str | None = None
    settled: str | None = None
    """How a doubt was settled, when there was one."""


class Call(BaseModel):
    model_config = ConfigDict(frozen=True)

    tool: str
    call_id: str
    idempotency_key: str
    input: Json

    def ended(self, outcome: Outcome, *, output: Json = None, note: str | None = None) -> ToolRecord:
        return ToolRecord(**self.model_dump(), outcome=outcome, output=output, note=note)


Execute = Callable[[], Awaitable[Json]]
"""Runs the tool and returns its result as JSON data."""
Start = Callable[[], Awaitable[Literal["fresh", "in doubt"]]]
"""Puts the effect on the ledger and says whether an earlier start has no recorded end."""
Verify = Callable[[], Awaitable[Json]]
"""Asks the world whether the effect happened."""


async def call_pure(call: Call, execute: Execute) -> ToolRecord:
    """Safe to repeat: the tool says that it only reads."""
    try:
        return call.ended("returned", output=await execute())
    except (ToolRetryError, ModelRetry) as retry:
        return call.ended("retry", note=_retry_text(retry))
    except (ToolFailedError, ToolFailed) as failure:
        return call.ended("failed", note=str(failure))
    except ApprovalRequired as request:
        return call.ended("asked", note=str((request.metadata or {}).get("reason", "the tool asks for approval")))
    except CallDeferred:
        return call.ended("deferred", note="the tool defers to an external executor")
    except CannotStore as problem:
        return call.ended("failed", note=f"the tool {call.tool} ran, but its result cannot be stored: {problem}")
    except (Exception, SystemExit) as error:  # a tool may call code that means to end its own program
        return call.ended("raised", note=f"{type(error).__name__}: {error}")


async def call_effect(
    call: Call, policy: InDoubtPolicy, *, start: Start, execute: Execute, verify: Verify | None
) -> ToolRecord:
    """Safe to repeat: the ledger knows an earlier start, and then the policy decides, never a silent second run."""
    match await start():
        case "fresh":
            return await call_pure(call, execute)
        case "in doubt":
            return await settle(call, policy, execute, verify)


async def settle(call: Call, policy: InDoubtPolicy, execute: Execute, verify: Verify | None) -> ToolRecord:
    match policy:
        case "retry":
            return _settled(await call_pure(call, execute), "ran again under the same key")
        case "verify":
            assert verify is not None, "effect() requires a check for this policy"
            try:
                found = await verify()
            except Exception as error:
                return _unknown(call, f"the check failed: {type(error).__name__}: {error}")
            if found is None or found is False:
                return _settled(await call_pure(call, execute), "checked: it had not happened, so it ran")
            confirmed = f"{call.tool} was interrupted; a check confirms that it happened, so it was not run again."
            return _settled(
                call.ended("returned", output=confirmed if found is True else found), "checked: it had happened"
            )
        case "ask":
            reason = f"{call.tool} was interrupted and may or may not have happened. Approve to run it (again)."
            return _settled(call.ended("asked", note=reason), "a person is asked")
        case "report":
            return _unknown(call, "the worker died while it ran")


def _unknown(call: Call, why: str) -> ToolRecord:
    told = (
        f"The outcome of this call to {call.tool} is unknown: {why}. It may or may not have happened, and it was"
        " not run again. Find out by other means, or tell the user, before you repeat it."
    )
    return _settled(call.ended("unknown", output=told, note=why), "reported as unknown")


def _settled(record: ToolRecord, how: str) -> ToolRecord:
    return record.model_copy(update={"settled": how})


def _retry_text(retry: ToolRetryError | ModelRetry) -> str:
    if isinstance(retry, ModelRetry):
        return retry.message
    content = retry.tool_retry.content
    return content if isinstance(content, str) else str(retry)
