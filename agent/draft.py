"""A request in the making: what is restored, and what of the conversation fits beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai_harness.compaction import estimate_token_count

from agent.context import CHARACTERS_PER_TOKEN, Section, safe_cut, sections_of, state_of, tokens_in, waiting_after
from agent.recorder import Execution
from store import exam
from store.documents import Checkpoint
from store.types import Restored


class Draft:
    """A request in the making: what is restored, and what of the conversation follows it."""

    def __init__(self, execution: Execution, restored: Restored, room: int) -> None:
        self.execution = execution
        self.restored = restored
        self.room = room
        self.cut = execution.conversation.cut
        self.visible: list[ModelMessage] = list(execution.conversation.messages[self.cut :])

    @property
    def checkpoint(self) -> Checkpoint:
        return self.restored.checkpoint or Checkpoint()

    @property
    def state(self) -> str | None:
        return state_of(
            self.restored,
            summary=self.execution.conversation.summary,
            unseen_input=self._unseen_input,
            owed=self.execution.owed,
        )

    @property
    def sections(self) -> list[Section]:
        """What the state is made of, for people to look at."""
        return sections_of(self.restored, self.execution.conversation.summary, self._unseen_input, self.execution.owed)

    @property
    def _unseen_input(self) -> str | None:
        prompt_is_hidden = self.cut > self.execution.conversation.prompt_index
        return self.execution.task.input[:2000] if prompt_is_hidden else None

    @property
    def messages(self) -> list[ModelMessage]:
        """The state of the work, the recent conversation, what waits, and what is being worked on."""
        state, visible = self.state, list(self.visible)
        if queue := waiting_after(self.restored):
            prompt = self.execution.conversation.prompt_index - self.cut
            place = prompt if 0 <= prompt < len(visible) else len(visible) - 1
            visible[place : place + 1] = [with_queue(message, queue) for message in visible[place : place + 1]]
        return [ModelRequest(parts=[UserPromptPart(state)]), *visible] if state else visible

    @property
    def tokens(self) -> int:
        return estimate_token_count(self.messages)

    @property
    def state_tokens(self) -> int:
        return tokens_in(self.state or "")

    @property
    def text(self) -> str:
        """All that will really be sent."""
        return "\n".join(text_of(message) for message in self.clamped())

    @property
    def questions(self) -> list[exam.Question]:
        return exam.questions_about(self.checkpoint, corrections=self.restored.corrections)

    def cover(self, room: int, keep: int, *, at_least: int = 1) -> list[ModelMessage]:
        """Take from the conversation what must give way so that the rest fits; what is taken."""
        conversation = self.execution.conversation
        plain: list[Any] = ModelMessagesTypeAdapter.dump_python(conversation.messages, mode="json")
        cut = self.cut
        for kept in (keep, keep // 2, keep // 4, 2, 1):
            if kept < at_least:
                break
            cut = safe_cut(plain, max(self.cut, len(plain) - max(kept, 1)))
            if estimate_token_count(conversation.messages[cut:]) + self.state_tokens <= room:
                break
        if cut >= len(plain):
            cut = max(self.cut, len(plain) - 1)
        covered = conversation.messages[self.cut : cut]
        self.cut = cut
        self.visible = list(conversation.messages[cut:])
        return covered

    def summarise(self, summary: str) -> None:
        self.execution.conversation.summary = summary
        self.execution.conversation.cut = self.cut

    def clamped(self) -> list[ModelMessage]:
        """The messages, with what is larger than the window cut short and a note of where the whole of it is."""
        messages = self.messages
        while (excess := estimate_token_count(messages) - self.room) > 0:
            longest = max(range(len(messages)), key=lambda index: len(text_of(messages[index])))
            size = len(text_of(messages[longest]))
            if size < 400:
                break
            keep = max(size - excess * CHARACTERS_PER_TOKEN - 300, 200)
            messages = [*messages[:longest], shortened(messages[longest], keep), *messages[longest + 1 :]]
        return messages


def with_queue(message: ModelMessage, queue: str) -> ModelMessage:
    """Before the user's words, but after the results of calls, which must come first."""
    if not isinstance(message, ModelRequest):
        return message
    said = UserPromptPart(queue)
    is_prompt = isinstance(message.parts[0], UserPromptPart)
    return replace(message, parts=[said, *message.parts] if is_prompt else [*message.parts, said])


def shortened(message: ModelMessage, keep: int) -> ModelMessage:
    note = "\n[… {} characters are left out here; search_history finds the whole of it …]\n"

    def cut(text: str) -> str:
        if len(text) <= keep:
            return text
        return text[: keep * 2 // 3] + note.format(len(text) - keep) + text[-keep // 3 :]

    parts: list[Any] = []
    for part in message.parts:
        match part:
            case UserPromptPart(content=str(text)) | TextPart(content=text):
                parts.append(replace(part, content=cut(text)))
            case ToolReturnPart():
                parts.append(replace(cast(Any, part), content=cut(part.model_response_str())))
            case _:
                parts.append(part)
    return cast(ModelMessage, replace(cast(Any, message), parts=parts))


def extract(earlier: str | None, covered: Sequence[ModelMessage], most_tokens: int) -> str:
    """A summary without a model: what was said, one line each, the newest kept when not all fits."""
    lines: list[str] = []
    for message in covered:
        for part in message.parts:
            match part:
                case UserPromptPart():
                    lines.append(f"- user: {' '.join(str(part.content).split())[:200]}")
                case TextPart():
                    lines.append(f"- agent: {' '.join(part.content.split())[:200]}")
                case ToolReturnPart():
                    lines.append(f"- {part.tool_name} returned: {' '.join(part.model_response_str().split())[:100]}")
                case _:
                    pass
    room = most_tokens * CHARACTERS_PER_TOKEN // 2
    start = (earlier or "")[:room]
    while lines and len(start) + sum(len(line) + 1 for line in lines) > 2 * room:
        lines.pop(0)
    return "\n".join([start, *lines]).strip() or "(nothing was said)"


def text_of(message: ModelMessage) -> str:
    texts: list[str] = []
    for part in message.parts:
        match part:
            case ToolReturnPart():
                texts.append(part.model_response_str())
            case _:
                texts.append(str(getattr(part, "content", "")))
    return "\n".join(texts)
