"""A model behind the chat-completions protocol, as strict about its prompts as the real ones, and scripted by the test.

A reply is a list of steps, made by the functions below: `model.queue(text("Hel", "lo"), usage(3, 2))`.
The closing chunk with its finish reason and `[DONE]` follow by themselves, unless the reply ends in another way.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.far.gates import Gate
from tests.far.http import Exchange, HttpFarSide, HungUp, Request
from tests.far.log import PATIENCE_SECONDS


@dataclass(frozen=True)
class Delta:
    """One chunk of the stream, with its `delta` exactly as given."""

    delta: Mapping[str, Any]
    finish_reason: str | None = None


@dataclass(frozen=True)
class Usage:
    """What the call used, in tokens. Sent after the closing chunk."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Hold:
    """Waits at a gate, in the middle of the stream."""

    gate: Gate


@dataclass(frozen=True)
class Pause:
    """Takes its time, in the middle of the stream."""

    seconds: float


@dataclass(frozen=True)
class Drip:
    """Sends a text one byte of the HTTP stream at a time."""

    text: str
    seconds: float


@dataclass(frozen=True)
class Raw:
    """Bytes of the event stream, exactly as given."""

    data: bytes


@dataclass(frozen=True)
class Finish:
    """The finish reason of the closing chunk, when it is not the usual one."""

    reason: str


@dataclass(frozen=True)
class Truncated:
    """The end of the stream without a closing chunk: cleanly, or with the socket closed in the middle of a chunk."""

    cleanly: bool = True


@dataclass(frozen=True)
class ErrorStatus:
    """An error instead of a stream."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


Step = Delta | Usage | Hold | Pause | Drip | Raw | Finish | Truncated | ErrorStatus


@dataclass(frozen=True)
class Call:
    """A tool call. `arguments` is an object, or the raw text of one that is not well formed."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    call_id: str | None = None


def text(*chunks: str) -> list[Step]:
    """The answer's text, a chunk each."""
    return [Delta({"content": chunk}) for chunk in chunks]


def reasoning(*chunks: str) -> list[Step]:
    """The model's reasoning, a chunk each, in the field that reasoning models use for it."""
    return [Delta({"reasoning_content": chunk}) for chunk in chunks]


def tool_calls(*calls: Call) -> list[Step]:
    """Parallel tool calls, each streamed as real providers do: id and name first, then its arguments in two pieces."""
    steps: list[Step] = []
    for index, call in enumerate(calls):
        arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
        call_id = call.call_id or f"call_{index}_{call.name}"
        function = {"name": call.name, "arguments": ""}
        steps.append(Delta({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}))
        middle = len(arguments) // 2
        steps += [
            Delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in (arguments[:middle], arguments[middle:])
        ]
    return steps


def deltas(*values: Mapping[str, Any]) -> list[Step]:
    """Chunks of an odd provider, exactly as given."""
    return [Delta(value) for value in values]


def usage(input_tokens: int, output_tokens: int) -> list[Step]:
    """What the call used, in tokens; sent after the closing chunk, wherever it stands in the reply."""
    return [Usage(input_tokens, output_tokens)]


def hold(gate: Gate) -> list[Step]:
    """A wait at a gate, in the middle of the stream."""
    return [Hold(gate)]


def pause(seconds: float) -> list[Step]:
    """A pause of so many seconds, in the middle of the stream. Not for tests: they hold a gate."""
    return [Pause(seconds)]


def drip(content: str, seconds: float = 1.0) -> list[Step]:
    """A text of which the socket gets one byte in this many seconds."""
    return [Drip(content, seconds)]


def finish(reason: str) -> list[Step]:
    """The closing chunk has a finish reason of the test's choice, for example "length"."""
    return [Finish(reason)]


def truncated(*, cleanly: bool = True) -> list[Step]:
    """The end of the stream without a closing chunk."""
    return [Truncated(cleanly)]


def error(status: int, message: str = "the model is out of order", **headers: str) -> list[Step]:
    """An error status in place of a stream; underscores in header names stand for dashes."""
    body = json.dumps({"error": {"message": message, "type": "stand_in"}}).encode()
    return [ErrorStatus(status, body, {name.replace("_", "-"): value for name, value in headers.items()})]


@dataclass(frozen=True)
class Prompt:
    """A chat-completions request, read."""

    request: Request

    @property
    def body(self) -> dict[str, Any]:
        """The whole body."""
        body: dict[str, Any] = self.request.json()
        return body

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages, as sent."""
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages

    @property
    def tools(self) -> list[dict[str, Any]]:
        """What is offered to the model: each tool's name, description and parameters."""
        return [tool["function"] for tool in self.body.get("tools", [])]

    def texts(self, role: str) -> list[str]:
        """The contents of the messages of one role."""
        return [message["content"] for message in self.messages if message["role"] == role]


Responder = Callable[[Prompt], Sequence[Step]]


class ModelServer(HttpFarSide):
    """Replies with what was queued, in order, then with what `respond` makes of the prompt.

    A prompt that real providers refuse (a tool call without its result, a result without its call) is refused with
    status 400. A request for which there is no reply gets status 500, and `unanswered` counts it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.respond: Responder | None = None
        self.unanswered = 0
        self._queued: deque[list[Step]] = deque()

    def queue(self, *parts: Sequence[Step]) -> None:
        """Queues one reply, made of all the parts in order."""
        self._queued.append([step for part in parts for step in part])

    @property
    def base_url(self) -> str:
        """What OPENAI_BASE_URL should be."""
        return f"{self.origin}/v1"

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts so far."""
        return [Prompt(request) for request in self.requests]

    async def prompt(self, number: int = 1, *, within: float = PATIENCE_SECONDS) -> Prompt:
        """The prompt of this number, counted from 1, as soon as it came."""
        return Prompt(await self.request(number, within=within))

    async def reply(self, exchange: Exchange) -> None:
        """Streams the next reply."""
        prompt = Prompt(exchange.request)
        refusal = _refusal(prompt)
        if refusal:
            steps: Sequence[Step] = error(400, refusal)
        elif self._queued:
            steps = self._queued.popleft()
        elif self.respond:
            steps = self.respond(prompt)
        else:
            self.unanswered += 1
            steps = error(500, "no reply is queued")
        if steps and isinstance(steps[0], ErrorStatus):
            await exchange.whole(
                steps[0].status, steps[0].body, {"Content-Type": "application/json", **steps[0].headers}
            )
        else:
            await _stream(exchange, prompt, steps)


async def _stream(exchange: Exchange, prompt: Prompt, steps: Sequence[Step]) -> None:
    await exchange.head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
    finish_reason = "stop"
    used: Usage | None = None
    for step in steps:
        match step:
            case Delta(delta, reason):
                finish_reason = "tool_calls" if "tool_calls" in delta else finish_reason
                await exchange.chunk(_chunk(prompt, delta, reason))
            case Hold(gate):
                await gate.passage()
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Drip(content, seconds):
                await _drip(exchange, _chunk(prompt, {"content": content}), seconds)
            case Raw(data):
                await exchange.chunk(data)
            case Usage():
                used = step
            case Finish(reason):
                finish_reason = reason
            case Truncated(cleanly):
                return await _truncate(exchange, cleanly)
            case ErrorStatus():
                raise AssertionError("an error status must be the only step of its reply")
    await exchange.chunk(_chunk(prompt, {}, finish_reason))
    if used is not None:
        await exchange.chunk(_usage(prompt, used))
    await exchange.chunk(b"data: [DONE]\n\n")
    return await exchange.chunk(b"")


async def _drip(exchange: Exchange, data: bytes, seconds: float) -> None:
    for byte in data:
        await exchange.chunk(bytes([byte]))
        await asyncio.sleep(seconds)


async def _truncate(exchange: Exchange, cleanly: bool) -> None:
    if not cleanly:
        await exchange.send(b"ff\r\ndata: {")
        raise HungUp
    await exchange.chunk(b"")


def _chunk(prompt: Prompt, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
    return _event(prompt, {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def _usage(prompt: Prompt, used: Usage) -> bytes:
    counts = {
        "prompt_tokens": used.input_tokens,
        "completion_tokens": used.output_tokens,
        "total_tokens": used.input_tokens + used.output_tokens,
    }
    return _event(prompt, {"choices": [], "usage": counts})


def _event(prompt: Prompt, body: Mapping[str, Any]) -> bytes:
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": prompt.body["model"], **body}
    return b"data: " + json.dumps(frame).encode() + b"\n\n"


def _refusal(prompt: Prompt) -> str | None:
    """Why a real provider would refuse this request; None when it would not."""
    if prompt.request.path != "/v1/chat/completions" or not prompt.body.get("stream"):
        return "only POST /v1/chat/completions with stream is served"
    owed: list[str] = []
    for message in prompt.messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in owed:
                return "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            owed.remove(message["tool_call_id"])
        elif owed:
            return f"tool_call_ids did not have response messages: {', '.join(owed)}"
        else:
            owed = [call["id"] for call in message.get("tool_calls", [])]
    return f"tool_call_ids did not have response messages: {', '.join(owed)}" if owed else None
