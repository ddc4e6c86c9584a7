"""What makes a user's agent durable, attached to a copy so that the user's own object stays as it was."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

import anyio.to_thread
from pydantic_ai import Agent, DeferredToolRequests, RunContext
from pydantic_ai import exceptions as failures
from pydantic_ai._output import OutputSchema
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering, CombinedCapability
from pydantic_ai.capabilities.abstract import WrapOutputProcessHandler, WrapToolExecuteHandler
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.output import OutputContext
from pydantic_ai.tools import DeferredToolResults, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from agent import tools
from agent.breaker import ToolBreakers
from agent.broadcast import Broadcast
from agent.decisions import find_owed, honour, is_approval, results_of
from agent.desk import Space, lent
from agent.notebook import NAMES, notebook
from agent.people import NAMES as PEOPLE
from agent.people import people
from agent.recorder import Execution, WrongCall, current, fenced, heed, is_recording, look_up, lost, record
from agent.request import Budget, FittedRequests
from agent.serializer import pack, unpack
from agent.space import NAMES as FILE_TOOLS
from agent.space import workspace_tools
from agent.tools import Effect, Policy, Pure, policy_of
from agent.watch import StepAborted, watched
from steps.tool import Call, Execute, ToolRecord, call_effect, call_pure
from store import effects, supervision
from store.database import Database
from store.plain import CannotLoad, CannotStore, storable
from store.types import PersonDecision

MODEL_ATTEMPTS = 5
FIRST_RETRY_SECONDS = 1.0

TRANSIENT = (
    failures.ModelRateLimitError,
    failures.ModelUnavailableError,
    failures.ModelServerError,
    failures.ModelConnectionError,
)


class ToolError(Exception):
    """A tool raised; the kind and the message are those it was recorded with."""


@dataclass(frozen=True)
class Terms:
    """On what terms agents are made durable."""

    database: Database
    budget: Budget
    model: str | None = None
    with_notebook: bool = True
    with_people: bool = True
    breakers: ToolBreakers = field(default_factory=ToolBreakers)
    stall_seconds: float = 300
    space: Space | None = None
    with_workspace: bool = False
    broadcast: Broadcast | None = None


def make_durable(agent: Agent[Any, Any], terms: Terms) -> Agent[Any, Any]:
    """A copy of the agent whose model requests and tool calls are recorded steps."""
    durable = copy.copy(agent)
    if terms.model is not None:
        durable._model = terms.model
    _offer_deferral(durable)
    durable._constructor_dynamic_toolset_count = len(agent._dynamic_toolsets)
    root = agent.root_capability
    assert isinstance(root, CombinedCapability)
    durable._root_capability = CombinedCapability(
        [RecordedTools(terms), FittedRequests(terms.database, terms.budget, terms.broadcast), *root.capabilities]
    )
    offered: list[AbstractToolset[Any]] = []
    if terms.with_notebook and not _has_tools_named(agent, NAMES):
        offered.append(notebook(terms.database))
    if terms.with_people and not _has_tools_named(agent, PEOPLE):
        offered.append(people())
    if terms.with_workspace and not _has_tools_named(agent, FILE_TOOLS):
        offered.append(workspace_tools())
    durable._user_toolsets = [*agent._user_toolsets, *offered]
    requests = DBOSDurability[Any](
        name=agent.name,
        model_step_config=cast(
            Any,
            {
                "retries_allowed": True,
                "max_attempts": MODEL_ATTEMPTS,
                "interval_seconds": FIRST_RETRY_SECONDS,
                "backoff_rate": 2.0,
                "should_retry": is_worth_retrying,
            },
        ),
    )
    bound = requests.for_agent(durable)
    durable._root_capability = CombinedCapability([*durable._root_capability.capabilities, bound])
    return durable


def _offer_deferral(durable: Agent[Any, Any]) -> None:
    """Beside its own output, a run may end with questions to a person."""
    own: Any = durable._output_type
    kinds: Any = [*(own if isinstance(own, (list, tuple)) else [own]), DeferredToolRequests]
    durable._output_type = kinds
    durable._output_schema = OutputSchema[Any].build(kinds)
    durable._output_toolset = durable._output_schema.toolset
    if durable._output_toolset is not None and durable._output_toolset.max_retries is None:
        durable._output_toolset.max_retries = durable._max_output_retries


def _has_tools_named(agent: Agent[Any, Any], names: Sequence[str]) -> bool:
    known: set[str] = set()

    def collect(toolset: AbstractToolset[Any]) -> None:
        if isinstance(toolset, FunctionToolset):
            known.update(toolset.tools)

    for toolset in agent.toolsets:
        toolset.apply(collect)
    return not known.isdisjoint(names)


def has_durability(agent: AbstractAgent[Any, Any]) -> bool:
    found: list[AbstractCapability[Any]] = []
    agent.root_capability.apply(found.append)
    return any(isinstance(capability, DBOSDurability) for capability in found)


def is_worth_retrying(error: BaseException) -> bool:
    """Whether the same request may be answered later: limits, overload, faults and silence; not refusals."""
    if isinstance(error, failures.ModelHTTPError):
        return error.status_code in (408, 409, 425, 429) or error.status_code >= 500
    return isinstance(error, (*TRANSIENT, TimeoutError, ConnectionError))


@dataclass
class RecordedTools(AbstractCapability[Any]):
    """Makes every tool call exactly one recorded step, and every effect one entry on the ledger."""

    terms: Terms

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        execution = current.get()
        if execution is None or not is_recording():
            return await handler(args)
        if not ctx.tool_call_approved and is_approval(find_owed(execution, call)):
            raise failures.ApprovalRequired()  # a person has decided on it already: handle_deferred_tool_calls knows
        made = Call(
            tool=call.tool_name,
            call_id=call.tool_call_id,
            idempotency_key=_key_of(execution, ctx, call),
            input=_input(args),
        )

        execute = self._keyed(execution, made, handler, args)

        async def step() -> dict[str, Any]:
            await self._pass_breaker(execution, made)
            match _policy(ctx, tool_def):
                case Pure():
                    await look_up(self.terms.database, execution)
                    done = await call_pure(made, execute)
                case Effect() as policy:
                    done = await self._effect(execution, made, policy, ctx, args, execute)
            return done.model_dump(mode="json")

        recorded = await _recorded(made, step)
        return _told(recorded, made)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Calls on which a person has decided before a task was replaced are not asked about again."""
        execution = current.get()
        if execution is None or not execution.owed:
            return None
        used: dict[str, PersonDecision] = {}
        for call in (*requests.approvals, *requests.calls):
            if (decided := await honour(self.terms.database, execution, call)) is not None:
                used[call.tool_call_id] = decided
        return results_of(used) if used else None

    async def wrap_output_process(
        self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any, handler: WrapOutputProcessHandler
    ) -> Any:
        """An output function may change the world like a tool, so it is recorded like an unmarked one."""
        execution = current.get()
        if not output_context.has_function or ctx.partial_output or execution is None or not is_recording():
            return await handler(output)
        name = output_context.function_name or "output"
        call_id = output_context.tool_call.tool_call_id if output_context.tool_call else f"output-{ctx.run_step}"
        key = call_key(execution.task.task_id, f"{ctx.run_step}", call_id)
        made = Call(tool=name, call_id=call_id, idempotency_key=key, input=_input(output))

        async def step() -> dict[str, Any]:
            done = await self._effect(
                execution, made, tools.UNMARKED, ctx, {}, self._keyed(execution, made, handler, output)
            )
            return done.model_dump(mode="json")

        recorded = await _recorded(made, step)
        if recorded.outcome == "unknown":
            raise ToolError(
                f"the outcome of the output function {name} is unknown: {recorded.note}; it was not run again"
            )
        return _told(recorded, made)

    async def _pass_breaker(self, execution: Execution, call: Call) -> None:
        """A tool that took many sessions down is not called again before one call has been tried."""
        task = execution.task
        if scope := self.terms.breakers.holding(task.agent, call.tool):
            waiting = supervision.wait_for_tool(task.task_id, execution.owner, scope)
            await fenced(self.terms.database, waiting, task.task_id)
            raise lost(task.task_id)

    def _keyed(self, execution: Execution, call: Call, handler: Callable[[Any], Any], given: Any) -> Execute:
        """Runs a handler under the call's key, watched, and gives its result as JSON data."""
        task = execution.task.task_id

        async def execute() -> Any:
            token = tools._key.set(call.idempotency_key)
            try:
                if call.tool in NAMES:  # waits for Postgres at most, which is not its fault
                    return pack(await handler(given))
                async with watched(f"tool.{call.tool}", task, execution.owner):
                    with lent(self.terms.space):
                        return pack(await handler(given))
            except StepAborted as aborted:
                stalled = supervision.stall(task, execution.owner, step=str(aborted), seconds=self.terms.stall_seconds)
                await fenced(self.terms.database, stalled, task)
                raise lost(task) from None
            finally:
                tools._key.reset(token)

        return execute

    async def _effect(
        self,
        execution: Execution,
        call: Call,
        policy: Effect,
        ctx: RunContext[Any],
        args: dict[str, Any],
        execute: Execute,
    ) -> ToolRecord:
        opening = effects.start_effect(
            execution.task.task_id,
            execution.owner,
            execution.worker,
            key=call.idempotency_key,
            call=call.call_id,
            tool=call.tool,
            arguments=call.input,
            policy=policy.in_doubt,
        )

        async def start() -> Literal["fresh", "in doubt"]:
            answer = await fenced(self.terms.database, opening, execution.task.task_id)
            if answer != "fresh" and answer != "in doubt":
                await heed(self.terms.database, execution, answer)
            return "in doubt" if answer == "in doubt" else "fresh"

        verify = (
            self._keyed(execution, call, partial(_ask_the_world, policy.verify, ctx), args) if policy.verify else None
        )
        return await call_effect(
            call,
            policy.in_doubt,
            start=start,
            execute=execute,
            verify=verify,
        )


async def _recorded(made: Call, step: Callable[[], Awaitable[dict[str, Any]]]) -> ToolRecord:
    """The record of a call with its output as the agent is given it, whether it was made now or long ago."""
    is_fresh = False

    async def run() -> dict[str, Any]:
        nonlocal is_fresh
        is_fresh = True
        return await step()

    stored = await record(f"tool.{made.tool}", run)
    try:
        recorded = ToolRecord.model_validate(stored)
        return recorded.model_copy(update={"output": unpack(recorded.output)})
    except Exception as error:
        if is_fresh:
            raise
        # Only what an earlier release recorded: a fresh task in its place would not come to the same end.
        why = " ".join(str(error).split())[:300]
        raise CannotLoad(f"the record of {made.tool} call {made.call_id} cannot be loaded any more: {why}") from error


def _told(recorded: ToolRecord, made: Call) -> Any:
    """Give the agent what the record says, alike on the first run and on every recovery."""
    if recorded.call_id != made.call_id:
        raise WrongCall(
            f"{recorded.tool} call {recorded.call_id} is on record"
            f" where the code now makes {made.tool} call {made.call_id}"
        )
    note = recorded.note or ""
    match recorded.outcome:
        case "returned" | "unknown":
            return recorded.output
        case "retry":
            raise failures.ModelRetry(note)
        case "failed":
            raise failures.ToolFailed(note)
        case "asked":
            raise failures.ApprovalRequired({"reason": note, "idempotency_key": recorded.idempotency_key})
        case "deferred":
            raise failures.CallDeferred()
        case "raised":
            raise ToolError(f"{recorded.tool} raised {note}")


def _input(given: Any) -> Any:
    try:
        return storable(given)
    except CannotStore as problem:
        return {"not stored": str(problem)}


def _key_of(execution: Execution, ctx: RunContext[Any], call: ToolCallPart) -> str:
    decided = execution.decisions.get(call.tool_call_id)
    if decided is not None and ctx.tool_call_approved:
        return decided.idempotency_key
    return call_key(execution.task.task_id, f"{ctx.run_step}", call.tool_call_id)


def call_key(task: str, place: str, call_id: str) -> str:
    """Names one call for good. The place tells apart calls to which a model gave the same id."""
    return f"{task}:{hashlib.sha256(f'{place}:{call_id}'.encode()).hexdigest()[:16]}"


def _policy(ctx: RunContext[Any], tool_def: ToolDefinition) -> Policy:
    listed: Any = (ctx.tool_manager.tools or {}).get(tool_def.name) if ctx.tool_manager else None
    while hasattr(listed, "source_tool"):
        listed = listed.source_tool
    function = getattr(getattr(getattr(listed, "call_func", None), "__self__", None), "function", None)
    if function is not None:
        return policy_of(function)
    annotations = (tool_def.metadata or {}).get("annotations") or {}
    return Pure() if annotations.get("readOnlyHint") is True else tools.UNMARKED


async def _ask_the_world(check: Callable[..., Any], ctx: RunContext[Any], args: dict[str, Any]) -> Any:
    """Call a check with those of the tool's arguments that it takes."""
    taken = inspect.signature(check).parameters
    given: dict[str, Any] = {name: value for name, value in args.items() if name in taken}
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values()):
        given = dict(args)
    first = next(iter(taken), None)
    positional = [ctx] if first is not None and first not in args else []
    if inspect.iscoroutinefunction(check):
        return await check(*positional, **given)
    return await anyio.to_thread.run_sync(partial(check, *positional, **given))
