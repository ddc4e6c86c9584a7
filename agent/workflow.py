"""The workflow of a task: open, assemble, act, commit. Ids in, a small result out.

Nothing but model requests and tool calls is recorded by DBOS. Opening and committing are single
transactions that may run again, and the history is a prefix of an append-only list whose end was fixed at
the first opening; so each reads the same on every recovery without being recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

from dbos import DBOS
from pydantic_ai import Agent, DeferredToolRequests, capture_run_messages
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, ToolCallPart, UserPromptPart
from pydantic_ai.usage import UsageLimits

from agent import metrics, tracing
from agent.chronicle import retell
from agent.context import assemble
from agent.decisions import results_of
from agent.durability import call_key
from agent.engine import is_worth_waiting_out
from agent.notebook import amend_checkpoint
from agent.recorder import Conversation, Execution, TaskStopped, executing, fenced, lost, misfit, ownership
from agent.registry import Agents
from agent.request import steered
from agent.serializer import explain
from agent.watch import ToolThreads, attributed
from steps.handoff import write_handoff
from store import sessions, supervision, tasks, workers
from store.database import Database
from store.documents import Checkpoint, stated_rules, with_added
from store.errors import TaskFailed
from store.plain import CannotStore, readable, storable
from store.types import Json, OpenedTask, Question, TaskId, TaskOutcome, WorkerId

WORKFLOW = "run_task"
MOST_REQUESTS = 200
"""Model requests in one task before it is taken for a loop."""

RunTask = Callable[[str], Awaitable[dict[str, str]]]


@dataclass(frozen=True)
class Done:
    output: Json
    messages: Sequence[ModelMessage]


@dataclass(frozen=True)
class Waiting:
    questions: Sequence[Question]
    messages: Sequence[ModelMessage]


@dataclass(frozen=True)
class Failed:
    error: str
    messages: Sequence[ModelMessage]


@dataclass(frozen=True)
class Cancelled:
    why: str
    messages: Sequence[ModelMessage]


@dataclass(frozen=True)
class GivenBack:
    """The trouble is not the task's: it goes back to the queue, and on from its records."""

    why: str


@dataclass(frozen=True)
class Outgrown:
    """The code has changed since the task began, and its records no longer fit: a fresh task takes its place."""

    difference: str
    messages: Sequence[ModelMessage]


Result = Done | Waiting | Failed | Cancelled

tool_threads = ToolThreads()

PAUSE_SECONDS = 1.0
"""Before a task is given back, so that what cannot be helped at once is not tried a hundred times a second."""


def register_workflow(
    agents: Agents, database: Database, worker: Callable[[], WorkerId], *, patience: float
) -> RunTask:
    """Make `run_task` known to DBOS, bound to what this process serves. People have `patience` seconds to answer."""

    @DBOS.workflow(name=WORKFLOW, max_recovery_attempts=None)
    async def run_task(task_id: str) -> dict[str, str]:
        execution = await open_task(database, TaskId(task_id), worker())
        tracing.describe(session=execution.task.session_id, agent=execution.task.agent, user=execution.task.user_id)
        if execution.task.outcome is not None:
            return ended(execution.task.outcome, execution.task)
        with executing(execution):
            history = await read_history(database, execution)
            await keep_rules(database, execution)
            result = await act(await agent_for(execution, agents, database), execution, history)
        if isinstance(result, GivenBack):
            raise await give_back(database, execution, result)
        if isinstance(result, Outgrown):
            return await hand_over(database, execution, result)
        await commit(database, execution, result, patience)
        return ended(outcome_of(result), execution.task.model_copy(update={"error": error_of(result)}))

    return run_task


def ended(outcome: TaskOutcome, task: OpenedTask) -> dict[str, str]:
    if outcome == "failed":
        raise TaskFailed(task.error or "no reason was recorded")
    return {"task_id": task.task_id, "session_id": task.session_id, "status": outcome}


async def open_task(database: Database, task_id: TaskId, worker: WorkerId) -> Execution:
    owner = ownership(task_id)
    task = await fenced(database, tasks.open_task(task_id, owner, worker), task_id)
    if task is None:
        raise lost(task_id)
    if task.waited_seconds is not None:
        metrics.queue_seconds.observe(max(0.0, task.waited_seconds))
    decisions = {decision.call_id: decision for decision in task.decisions}
    return Execution(
        task, owner, worker, decisions, is_recovering=task.is_recovering, steers=task.steers, owed=list(task.owed)
    )


async def read_history(database: Database, execution: Execution) -> list[ModelMessage]:
    """The recent conversation: what follows the last compaction, and every exchange that is still open."""
    task = execution.task
    compacted = task.compaction
    after = min(compacted.through, task.history_through) if compacted else 0
    reading = sessions.read_messages(
        task.session_id, after=after, through=task.history_through, continued=task.continues
    )
    stored = await database.run(reading)
    placed = assemble(stored, task)
    execution.conversation = Conversation([each.position for each in placed], task.history_through + 1)
    if compacted is not None:
        execution.conversation.summary = compacted.summary
        # A compaction inside this very task, before a crash, covers messages that the task adds again.
        execution.conversation.cut = len(placed) + max(0, compacted.through - task.history_through)
        if compacted.through <= task.history_through:
            execution.conversation.cut = 0
    return ModelMessagesTypeAdapter.validate_python([each.message for each in placed])


async def keep_rules(database: Database, execution: Execution) -> None:
    """Rules that the user lays down are kept word for word, whether or not the agent thinks of it."""
    rules = stated_rules(execution.task.input) if execution.task.kind == "input" else []

    def amend(known: Checkpoint) -> Checkpoint:
        constraints = known.constraints
        for rule in rules:
            constraints = with_added(constraints, rule)
        return known.model_copy(update={"constraints": constraints})

    if rules:
        await amend_checkpoint(database, execution, amend)


async def agent_for(execution: Execution, agents: Agents, database: Database) -> Agent[Any, Any] | Failed | GivenBack:
    """The task's agent; or, when this worker does not have it, whoever else may."""
    name = execution.task.agent
    if found := agents.get(name):
        return found
    if await database.run(workers.count_servers(name)):
        return GivenBack(f"this worker does not serve the agent {name!r}, another one does")
    return Failed(f"no worker serves an agent named {name!r} any more; add it to PERDURE_AGENTS", [])


async def act(
    agent: Agent[Any, Any] | Failed | GivenBack, execution: Execution, history: list[ModelMessage]
) -> Result | GivenBack | Outgrown:
    task = execution.task
    if not isinstance(agent, Agent):
        return agent
    with (
        capture_run_messages() as seen,
        Agent.using_thread_executor(tool_threads),
        attributed(task.task_id, execution.owner),
    ):
        try:
            finished = await agent.run(
                None if task.kind == "continuation" else task.input,
                message_history=history,
                deferred_tool_results=results_of(execution.decisions) if task.kind == "continuation" else None,
                usage_limits=UsageLimits(request_limit=MOST_REQUESTS),
            )
        except Exception as error:
            if is_worth_waiting_out(error):
                return GivenBack(f"{type(error).__name__}: {error}")
            if isinstance(error, TaskStopped) or task.control is not None:
                return Cancelled(str(error), seen[len(history) :])
            if (difference := misfit(error)) is not None:
                return Outgrown(difference, seen[len(history) :])
            kind, message = explain(error)
            return Failed(f"{kind}: {message}", seen[len(history) :])
    if isinstance(finished.output, DeferredToolRequests):
        return waiting(execution, finished.output, finished.new_messages())
    try:
        return Done(storable(finished.output), finished.new_messages())
    except CannotStore as error:
        return Failed(f"the agent's output cannot be stored: {error}", finished.new_messages())


async def give_back(database: Database, execution: Execution, reason: GivenBack) -> BaseException:
    DBOS.logger.warning(f"task {execution.task.task_id} goes back to the queue: {reason.why}")
    await asyncio.sleep(PAUSE_SECONDS)
    await database.run(tasks.give_back(execution.task.task_id, execution.owner))
    return lost(execution.task.task_id)


async def hand_over(database: Database, execution: Execution, result: Outgrown) -> dict[str, str]:
    """What the task did is kept in its session's history, and a fresh task goes on from there."""
    task = execution.task
    await write_handoff(
        database, session=task.session_id, task=task.task_id, reason="planned", occasion=f"handover:{task.task_id}"
    )
    records = await database.run(tasks.read_records(task.task_id))
    messages = [stored_form(message) for message in [*prompt_of(result.messages), *retell(records)]]
    statement = supervision.hand_over(task.task_id, execution.owner, difference=result.difference, messages=messages)
    following = await fenced(database, statement, task.task_id)
    DBOS.logger.warning(f"task {task.task_id} is handed over to {following}: {result.difference}")
    raise lost(task.task_id)


async def commit(database: Database, execution: Execution, result: Result, patience: float) -> None:
    task = execution.task
    statement = tasks.commit_task(
        task.task_id,
        execution.owner,
        outcome=outcome_of(result),
        output=result.output if isinstance(result, Done) else None,
        error=error_of(result),
        messages=[stored_form(message) for message in steered(result.messages, execution.steers)],
        context_tokens=tokens_of(result.messages),
        questions=[
            question.model_copy(update={"expires_seconds": patience})
            for question in (result.questions if isinstance(result, Waiting) else ())
        ],
    )
    await fenced(database, statement, task.task_id)
    metrics.tasks_ended.labels(task.agent, outcome_of(result)).inc()


def outcome_of(result: Result) -> TaskOutcome:
    match result:
        case Done():
            return "done"
        case Waiting():
            return "waiting"
        case Failed():
            return "failed"
        case Cancelled():
            return "cancelled"
        case _:
            assert_never(result)


def error_of(result: Result) -> str | None:
    match result:
        case Failed(error=why) | Cancelled(why=why):
            return why
        case _:
            return None


def waiting(execution: Execution, requests: DeferredToolRequests, messages: Sequence[ModelMessage]) -> Waiting:
    """Calls that need a person's approval, and calls that only a person can answer."""

    def question(call: ToolCallPart, kind: Literal["approval", "question"]) -> Question:
        known = requests.metadata.get(call.tool_call_id, {})
        arguments = storable(call.args_as_dict())
        default = asked_in(arguments) if kind == "question" else f"{call.tool_name} requires approval"
        return Question(
            call_id=call.tool_call_id,
            tool=call.tool_name,
            arguments=arguments,
            reason=known.get("reason", default),
            idempotency_key=known.get("idempotency_key")
            or call_key(execution.task.task_id, "approval", call.tool_call_id),
            kind=kind,
        )

    approvals = [question(call, "approval") for call in requests.approvals]
    return Waiting([*approvals, *(question(call, "question") for call in requests.calls)], messages)


def asked_in(arguments: dict[str, Any]) -> str:
    return str(arguments.get("question") or arguments.get("reason") or "an answer is needed")


def stored_form(message: ModelMessage) -> Json:
    """The message as it is kept: readable JSON, without the notes that belong to the step's own record."""
    [plain] = ModelMessagesTypeAdapter.dump_python([message], mode="json")
    notes = plain.get("metadata")
    if isinstance(notes, dict):
        plain["metadata"] = {key: value for key, value in notes.items() if key != "perdure"} or None  # pyright: ignore[reportUnknownVariableType]
    return readable(plain)


def prompt_of(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """The user's words, which are in no record."""
    said = messages[:1]
    return said if any(isinstance(part, UserPromptPart) for message in said for part in message.parts) else []


def tokens_of(messages: Sequence[ModelMessage]) -> int | None:
    """How full the context was at the last response."""
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            return message.usage.input_tokens + message.usage.output_tokens
    return None
