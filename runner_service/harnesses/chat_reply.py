"""One model reply, put together from the deltas of its stream, however a provider cuts them (CASES 30)."""

import json
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall
from turnkeeper.wire.text import SurrogateJoiner

from runner_service.tools.calls import read_arguments

# Where providers put a model's reasoning; the protocol itself has no field for it.
_REASONING_FIELDS = ("reasoning_content", "reasoning")
MAX_COUNT = 2**63 - 1
"""What is recorded of tokens fits an int64."""


@dataclass
class AskedCall:
    """A tool call in the making."""

    index: int
    model_id: str = ""
    name: str = ""
    arguments: str = ""

    @property
    def whole(self) -> bool:
        """Whether the arguments are a complete object, so that whatever follows belongs to another call."""
        return bool(self.arguments.strip()) and read_arguments(self.arguments)[0] is not None


@dataclass
class Reply:
    """What has arrived of one reply."""

    text: str = ""
    calls: list[AskedCall] = field(default_factory=list)
    finish_reason: str = ""
    """Empty until the model says that it is done."""
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    usage_known: bool = False
    _text_joiner: SurrogateJoiner = field(default_factory=SurrogateJoiner)
    _reasoning_joiner: SurrogateJoiner = field(default_factory=SurrogateJoiner)

    def feed(self, chunk: ChatCompletionChunk) -> tuple[str, str]:
        """Takes a chunk; gives what it adds to the text and to the reasoning."""
        self.model = chunk.model or self.model
        if chunk.usage is not None:
            self._add_usage(chunk.usage)
        text, reasoning = "", ""
        for choice in chunk.choices or ():
            if choice.index:
                # One answer was asked for; what a provider adds to it is not part of the conversation.
                continue
            if choice.delta is not None:
                text += self._text_joiner.feed((choice.delta.content or "") + (choice.delta.refusal or ""))
                reasoning += self._reasoning_joiner.feed(_reasoning(choice.delta))
                for call in choice.delta.tool_calls or ():
                    self._add_call(call)
            self.finish_reason = choice.finish_reason or self.finish_reason
        self.text += text
        return text, reasoning

    def flush(self) -> tuple[str, str]:
        """What was held back at the end of the stream."""
        text, reasoning = self._text_joiner.flush(), self._reasoning_joiner.flush()
        self.text += text
        return text, reasoning

    @property
    def begun(self) -> bool:
        """Whether the model has said anything at all."""
        return bool(self.text or self.calls or self.finish_reason)

    def _add_usage(self, usage: object) -> None:
        """Takes the counts that are ones; a provider's odd bookkeeping costs no answer."""
        asked, said = (getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens"))
        self.input_tokens = asked if _is_count(asked) else self.input_tokens
        self.output_tokens = said if _is_count(said) else self.output_tokens
        self.usage_known = self.usage_known or _is_count(asked) or _is_count(said)

    def _add_call(self, delta: ChoiceDeltaToolCall) -> None:
        name = (delta.function.name if delta.function else None) or ""
        arguments: Any = (delta.function.arguments if delta.function else None) or ""
        call = self._call_of(delta.index, delta.id or "", name)
        call.model_id = call.model_id or delta.id or ""
        call.name = call.name or name
        call.arguments += arguments if isinstance(arguments, str) else json.dumps(arguments)

    def _call_of(self, index: int | None, model_id: str, name: str) -> AskedCall:
        """The call that a delta goes on with, or a new one.

        A new call always brings its name. So where a provider numbers all parallel calls 0, a delta with a name begins
        another call if its id or its name is another, or if the call before it is whole. An id or a name that is
        repeated with every delta changes nothing, and neither does a new id without a name.
        """
        here = [call for call in self.calls if index is None or call.index == index]
        if model_id:
            known = next((call for call in here if call.model_id == model_id), None)
            if known is not None:
                return known
        last = here[-1] if here else None
        if last is None or (name and _begins_another(last, model_id, name)):
            last = AskedCall(index if index is not None else len(self.calls))
            self.calls.append(last)
        return last


def _begins_another(last: AskedCall, model_id: str, name: str) -> bool:
    return bool(model_id and last.model_id) or (bool(last.name) and name != last.name) or last.whole


def _reasoning(delta: ChoiceDelta) -> str:
    extra = delta.model_extra or {}
    return next((value for key in _REASONING_FIELDS if isinstance(value := extra.get(key), str)), "")


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MAX_COUNT
