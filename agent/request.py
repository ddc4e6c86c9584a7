"""What is really sent to a model: the state of the work, then the recent conversation, within the window.

All of it happens inside the step that records the request, so a recovery never repeats it and never has to
agree with it: only the response is recorded. See docs/decisions/0006-context-inside-the-request.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai import exceptions as failures
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestContext, ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai_harness.compaction import (
    DEFAULT_CONTEXT_WINDOW,
    ClearToolResults,
    DeduplicateFileReads,
    SummarizingCompaction,
    TieredCompaction,
    compact_now,
    estimate_token_count,
    resolve_context_window,
)
from pydantic_ai_harness.compaction._summary import is_summary_part, summary_request

from agent import metrics
from agent.broadcast import Broadcast
from agent.context import QUEUED, tokens_in
from agent.draft import Draft, extract
from agent.purse import Counted, paying, spent_on
from agent.recorder import STOPS, Execution, current, fenced, heed
from steps.handoff import write_handoff
from store import continuity, exam, spending, tasks
from store.database import Database
from store.exam import Examiner
from store.types import Restored, Steer

log = logging.getLogger("perdure")

SUMMARY_SHARE = 0.15
"""Of the window, what a summary may take."""
RESUMED_SHARE = 20
"""Of what a resumed task leaves out of the conversation, one part in so many is told."""
SPARE_TOKENS = 51
"""What is left free of a full window, for what an estimate misses."""
COHERENT = 0.7
"""Below this share of the facts, a context is rebuilt from the record."""


@dataclass(frozen=True)
class Budget:
    fraction: float
    keep_messages: int
    window: int | None
    examiner: Examiner | None = None
    """Who sits the exam on a summary, beside the check of facts."""
    silence_seconds: float = 300
    """How long a model may say nothing before the request is taken for failed."""
    learned: dict[str, int] = field(default_factory=dict[str, int])
    """Windows that turned out smaller than they were taken for, by model."""

    def window_of(self, model: Model) -> int:
        known = self.window or resolve_context_window(model) or DEFAULT_CONTEXT_WINDOW
        return min(known, self.learned.get(model.model_id, known))

    def learn(self, model: Model, refused: int) -> None:
        """A request of so many tokens was too long, whatever the model's window is said to be."""
        self.learned[model.model_id] = max(int(refused * 0.6), 500)


@dataclass
class FittedRequests(AbstractCapability[Any]):
    """Sends each request of a task as its session needs it."""

    database: Database
    budget: Budget
    broadcast: Broadcast | None = None

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        execution = current.get()
        if execution is not None:
            execution.conversation.messages = list(ctx.messages)
        return request_context

    def get_wrapper_model(self, model: Model) -> Model:
        return FittedModel(model, self.database, self.budget, self.broadcast)


class FittedModel(WrapperModel):
    def __init__(self, wrapped: Model, database: Database, budget: Budget, broadcast: Broadcast | None) -> None:
        super().__init__(wrapped)
        self._database = database
        self._budget = budget
        self._broadcast = broadcast

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        execution = current.get()
        if execution is None:
            return await super().request(messages, model_settings, model_request_parameters)
        with metrics.step("model", "responded", STOPS):
            return await self._ask(execution, model_settings, model_request_parameters)

    async def _ask(
        self, execution: Execution, model_settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> ModelResponse:
        draft = await self._fit(execution, parameters)
        fitted = draft.clamped()
        try:
            response = await self._send(execution, fitted, model_settings, parameters)
        except failures.ModelContextWindowExceededError:
            # The provider counts otherwise than we do: once more, with about half as much.
            self._budget.learn(self.wrapped, estimate_token_count(fitted) + overhead_of(parameters))
            draft = await self._fit(execution, parameters)
            fitted = draft.clamped()
            response = await self._send(execution, fitted, model_settings, parameters)
        execution.spent.append(spent_on(response, "answer"))
        metrics.pay(execution.task.agent, execution.spent)
        told = {**asked(self.wrapped, fitted), "spent": spending.told(execution.spent)}
        execution.spent = []
        return replace(response, metadata={**(response.metadata or {}), "perdure": told})

    async def _send(
        self,
        execution: Execution,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Streamed where the model can: every piece of the answer is a sign of life, and told to those who follow."""
        silence = self._budget.silence_seconds
        async with asyncio.timeout(silence) as limit:
            if not can_stream(self.wrapped):
                return await self.wrapped.request(messages, settings, parameters)
            answer = self._broadcast.begin(execution) if self._broadcast else None
            try:
                async with self.wrapped.request_stream(messages, settings, parameters) as stream:
                    async for event in stream:
                        limit.reschedule(asyncio.get_running_loop().time() + silence)
                        if answer:
                            answer.hear(event)
                return stream.get()
            finally:
                if answer and self._broadcast:
                    await self._broadcast.end(answer)

    async def _fit(self, execution: Execution, parameters: ModelRequestParameters) -> Draft:
        with paying(execution.spent):
            return await self._fitted(execution, parameters)

    async def _fitted(self, execution: Execution, parameters: ModelRequestParameters) -> Draft:
        task = execution.task
        reading = continuity.read_restored(task.session_id, task.task_id, is_recovering=task.is_recovering)
        restored = await self._database.run(reading)
        await heed(self._database, execution, restored.wanted)
        await self._steer(execution, restored)
        window = self._budget.window_of(self.wrapped)
        overhead = overhead_of(parameters)
        limit = max(int(window * self._budget.fraction) - overhead, 200)
        draft = Draft(execution, restored, room=max(window - overhead - SPARE_TOKENS, 200))
        is_changed = execution.is_recovering
        if execution.is_recovering:
            self._resume_lightly(draft)
        if draft.tokens > limit:
            await self._lighten(draft)
        if draft.tokens > limit:
            await self._compact(draft, limit, window)
            is_changed = True
        if is_changed:
            await self._check_coherence(draft)
        return draft

    async def _steer(self, execution: Execution, restored: Restored) -> None:
        """Words that came meanwhile stand with the newest message, now and in every later request."""
        conversation = execution.conversation
        execution.steers = restored.steers
        if any(steer.place is None for steer in restored.steers):
            place = len(conversation.messages) - conversation.prompt_index - 1
            delivering = tasks.deliver_steers(execution.task.task_id, execution.owner, place)
            await fenced(self._database, delivering, execution.task.task_id)
            execution.steers = tuple(
                steer if steer.place is not None else steer.model_copy(update={"place": place})
                for steer in restored.steers
            )
        history, run = (
            conversation.messages[: conversation.prompt_index],
            conversation.messages[conversation.prompt_index :],
        )
        conversation.messages = [*history, *steered(run, execution.steers)]

    def _resume_lightly(self, draft: Draft) -> None:
        """After a crash, the state of the work and the last turns say enough; the rest is told in a line each.

        Nothing of this is recorded: the next task sees the conversation as it was.
        """
        conversation = draft.execution.conversation
        conversation.before_resuming = (conversation.summary, conversation.cut)
        covered = draft.cover(0, self._budget.keep_messages, at_least=self._budget.keep_messages)
        if covered:
            share = max(estimate_token_count(covered) // RESUMED_SHARE, 100)
            draft.summarise(extract(draft.execution.conversation.summary, covered, share))

    async def _lighten(self, draft: Draft) -> None:
        """Leave out old tool results and reads that a later one supersedes; the originals stay in the session."""
        tiers = TieredCompaction[None](
            tiers=[
                ClearToolResults(max_tokens=1, keep_pairs=3),
                DeduplicateFileReads(file_key=lambda call: f"{call.tool_name} {call.args}", max_tokens=1),
            ],
            target_tokens=1,  # it would measure by what the model said of the last request, which was fitted too
        )
        before, whole = draft.tokens, draft.visible
        draft.visible = await compact_now(tiers, whole, model=self.wrapped)
        conversation = draft.execution.conversation
        cleared = [index for index, message in enumerate(draft.visible) if message != whole[index]]
        through = conversation.position_of(draft.cut + cleared[-1]) if cleared else 0
        # Each request of a task leaves out a little more: a row for each would say nothing new.
        recorded = conversation.lightened_through
        if through and (not recorded or through >= recorded + self._budget.keep_messages):
            conversation.lightened_through = through
            await self._record(draft, through, before, strategy="tool results cleared")

    async def _compact(self, draft: Draft, limit: int, window: int) -> None:
        """Replace the older part of the conversation by a summary that has passed an exam, and record it."""
        conversation = draft.execution.conversation
        if conversation.before_resuming is not None:  # what is recorded covers the conversation, not its extract
            conversation.summary, conversation.cut = conversation.before_resuming
            conversation.before_resuming = None
            draft.cut = conversation.cut
        before = draft.tokens
        room = limit - int(window * SUMMARY_SHARE)
        covered = draft.cover(room, self._budget.keep_messages)
        if not covered:
            return
        strategy, summary, problem = await self._summarise(conversation.summary, covered, int(window * SUMMARY_SHARE))
        graded = await exam.examine(summary, draft.questions, self._budget.examiner)
        summary = exam.repaired(summary, graded.missing)
        draft.summarise(summary)
        note = "; ".join(part for part in (problem, graded.note) if part) or None
        if (through := conversation.position_before(draft.cut)) is not None:
            task = draft.execution.task
            await self._record(
                draft, through, before, strategy=strategy, summary=summary, score=graded.score, note=note
            )
            await write_handoff(
                self._database,
                session=task.session_id,
                task=task.task_id,
                reason="overflow",
                occasion=f"compaction:{task.session_id}:{through}",
            )

    async def _record(
        self,
        draft: Draft,
        through: int,
        tokens_before: int,
        *,
        strategy: str,
        summary: str | None = None,
        score: float | None = None,
        note: str | None = None,
    ) -> None:
        task = draft.execution.task
        statement = continuity.record_compaction(
            task.task_id,
            draft.execution.owner,
            through=through,
            tokens_before=tokens_before,
            tokens_after=draft.tokens,
            strategy=strategy,
            summary=summary,
            exam_score=score,
            note=note,
        )
        await fenced(self._database, statement, task.task_id)
        metrics.compactions.labels(strategy).inc()

    async def _summarise(
        self, earlier: str | None, covered: Sequence[ModelMessage], most_tokens: int
    ) -> tuple[str, str, str | None]:
        """The strategy that served, the summary, and what went wrong on the way."""
        anchor: list[ModelMessage] = [summary_request(earlier)] if earlier else []
        end = ModelRequest(parts=[UserPromptPart("(The conversation goes on.)")])
        strategy = SummarizingCompaction[None](
            model=Counted(self.wrapped, "summary"),
            max_messages=1,
            keep_messages=1,
            preserve_first_user_message=False,
        )
        try:
            compacted = await compact_now(strategy, [*anchor, *covered, end], model=self.wrapped)
            written = [part.content for message in compacted for part in message.parts if is_summary_part(part)]
            if written and written[0] and tokens_in(written[0]) <= most_tokens:
                return "summary", written[0], None
            problem = "the summary was empty or too long"
        except Exception as error:
            problem = f"the summariser failed ({type(error).__name__})"
        return "extract", extract(earlier, covered, most_tokens), problem

    async def _check_coherence(self, draft: Draft) -> None:
        """Does what is sent hold what the record says? If not, put it back; if that fails, say so."""
        execution = draft.execution
        graded = exam.grade(draft.text, draft.questions)
        note = None
        if graded.score < COHERENT:
            draft.summarise(exam.repaired(execution.conversation.summary or "", graded.missing))
            graded = exam.grade(draft.text, draft.questions)
            missing = ", ".join(sorted({question.about for question in graded.missing}))
            note = "rebuilt from the record" + (f"; the window has no room for: {missing}" if missing else "")
        task = execution.task
        await self._database.run(
            continuity.set_coherence(task.session_id, task.task_id, graded.score, note, lowest=COHERENT)
        )
        execution.is_recovering = False


def steered(run: Sequence[ModelMessage], steers: Sequence[Steer]) -> list[ModelMessage]:
    """The messages of a run, with the words that reached it on its way."""
    messages = list(run)
    for steer in steers:
        if steer.place is not None and steer.place < len(messages):
            said = messages[steer.place]
            if isinstance(said, ModelRequest):
                messages[steer.place] = replace(said, parts=[*said.parts, UserPromptPart(steer.input)])
    return messages


def can_stream(model: Model) -> bool:
    """Whether streaming gives what a plain request would: not past a wrapper or fallback that only knows the latter."""
    while isinstance(model, WrapperModel):
        kind = type(model)
        if kind.request is not WrapperModel.request and kind.request_stream is WrapperModel.request_stream:
            return False
        model = model.wrapped
    if isinstance(model, FallbackModel):
        return False
    if isinstance(model, FunctionModel):
        return model.stream_function is not None
    return type(model).request_stream is not Model.request_stream


def overhead_of(parameters: ModelRequestParameters) -> int:
    """Tokens of what every request carries: instructions and tool definitions."""
    instructions = "".join(part.content for part in parameters.instruction_parts or ())
    tools = "".join(
        f"{tool.name}{tool.description}{tool.parameters_json_schema}"
        for tool in (*parameters.function_tools, *parameters.output_tools)
    )
    return tokens_in(instructions + tools)


def asked(model: Model, messages: Sequence[ModelMessage]) -> dict[str, Any]:
    """The request in few words: its newest parts, and tool results by the call that has them on record."""
    newest: list[dict[str, Any]] = []
    for part in messages[-1].parts:
        match part:
            case UserPromptPart(content=str(text)) if text.startswith(QUEUED):
                pass
            case UserPromptPart(content=str(text)):
                newest.append({"user": text})
            case ToolReturnPart():
                newest.append({"result_of": part.tool_call_id, "tool": part.tool_name})
            case _:
                newest.append({"part": part.part_kind})
    return {"model": model.model_name, "messages": len(messages), "newest": newest}
