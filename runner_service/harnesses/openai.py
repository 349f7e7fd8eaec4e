"""A tool loop over a streaming chat-completions service, with the official SDK against any compatible one."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, cast

import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from turnkeeper.v1 import run_pb2
from turnkeeper.wire.configs import Config, ModelConfig
from turnkeeper.wire.text import repair

from runner_service.harnesses.base import Harness, OpenHarness, Turn, TurnFailed
from runner_service.harnesses.chat_prompt import ChatMessage, assistant, chat_messages, tool_definitions, tool_result
from runner_service.harnesses.chat_reply import AskedCall, Reply
from runner_service.harnesses.chat_transport import http_client
from runner_service.settings import Settings
from runner_service.tools.calls import sayable, well_formed
from runner_service.tools.model import ToolRequest

MAX_TRIES = 3
MAX_RETRY_AFTER_SECONDS = 10.0
_WORTH_ANOTHER_TRY = {408, 409, 429}


class OpenAIHarness(Harness):
    """Plays turns against a chat-completions service."""

    name: ClassVar[str] = "openai"
    description: ClassVar[str] = "A tool loop over any service that speaks the OpenAI chat-completions protocol."

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._client: AsyncOpenAI | None = None

    @asynccontextmanager
    async def open(self, config: Config) -> AsyncIterator[OpenHarness]:
        """Makes ready; the client is made by the first turn and shared by all."""
        if config.model is None:
            raise TurnFailed(run_pb2.FAILURE_REASON_HARNESS_ERROR, "The config names no model.")
        yield ChatLoop(self._connected(), config, config.model)

    async def close(self) -> None:
        """Closes the connections that are kept for the next call."""
        if self._client is not None:
            await self._client.close()

    def _connected(self) -> AsyncOpenAI:
        if self._client is None:
            key = self.settings.openai_api_key
            if key is None and self.settings.openai_base_url is None:
                raise TurnFailed(
                    run_pb2.FAILURE_REASON_HARNESS_ERROR,
                    "The runner has no model service: set OPENAI_BASE_URL or OPENAI_API_KEY where it runs.",
                )
            self._client = AsyncOpenAI(
                base_url=self.settings.openai_base_url,
                # A service of one's own often wants no key, but the SDK does.
                api_key=key.get_secret_value() if key else "none",
                # Only this loop knows whether text was emitted already, so only it may try again.
                max_retries=0,
                http_client=http_client(),
            )
        return self._client


class ChatLoop:
    """One turn: ask the model, make the calls that it wants, tell it the results, until it wants none."""

    def __init__(self, client: AsyncOpenAI, config: Config, model: ModelConfig) -> None:
        self._client = client
        self._config = config
        self._model = model

    async def play(self, turn: Turn) -> None:
        """Ends well when the model asks for no more tools; FAILED / MAX_STEPS when it never stops asking."""
        messages = chat_messages(self._config.instructions, turn.preamble, turn.prompt)
        max_steps = self._config.limits.max_steps
        for step in range(1, max_steps + 1):
            reply = await self._model_call(turn, step, messages)
            if reply.usage_known:
                await turn.report_usage(step, reply.model, reply.input_tokens, reply.output_tokens)
            await turn.end_step(step, reply.finish_reason)
            if not reply.calls:
                return
            if step < max_steps:
                messages += await self._make_calls(turn, step, reply)
        raise TurnFailed(run_pb2.FAILURE_REASON_MAX_STEPS, f"The model still asked for tools after {max_steps} steps.")

    async def _make_calls(self, turn: Turn, step: int, reply: Reply) -> list[ChatMessage]:
        """Makes the calls; gives what the next prompt must say of them, in the order of the calls."""
        keys = _unique_keys(step, reply.calls)
        requests = [ToolRequest(call.name, call.arguments, call.model_id) for call in reply.calls]
        results = await turn.call_tools(step, requests)
        said = assistant(
            reply.text,
            [
                (key, sayable(call.name), well_formed(call.arguments))
                for key, call in zip(keys, reply.calls, strict=True)
            ],
        )
        return [said, *(tool_result(key, result.text) for key, result in zip(keys, results, strict=True))]

    async def _model_call(self, turn: Turn, step: int, messages: Sequence[ChatMessage]) -> Reply:
        """One model call within its limit, tried again only while nothing of it was emitted."""
        limit = self._config.limits.model_call_seconds
        try:
            async with asyncio.timeout(limit):
                for tried in range(1, MAX_TRIES + 1):
                    attempt = _Attempt(turn, step)
                    try:
                        await attempt.run(self._client, self._request(turn, messages), self._config)
                        return attempt.reply
                    except openai.APIError as error:
                        if tried == MAX_TRIES or attempt.emitted or not _passing(error):
                            raise _failure(error, attempt.reply) from error
                        await asyncio.sleep(_pause(error, tried))
        except TimeoutError:
            raise TurnFailed(
                run_pb2.FAILURE_REASON_UPSTREAM_ERROR, f"The model's call took longer than {limit:g} s."
            ) from None
        raise AssertionError("the last try returns or raises")

    def _request(self, turn: Turn, messages: Sequence[ChatMessage]) -> dict[str, Any]:
        model = self._model
        request: dict[str, Any] = {
            "model": model.name,
            "messages": cast(list[ChatCompletionMessageParam], messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if model.temperature is not None:
            request["temperature"] = model.temperature
        if model.max_output_tokens is not None:
            request["max_completion_tokens"] = model.max_output_tokens
        if turn.tools:
            request["tools"] = cast(list[ChatCompletionToolParam], tool_definitions(turn.tools))
        return request


class _Attempt:
    """One request to the model and what came of it."""

    def __init__(self, turn: Turn, step: int) -> None:
        self._turn = turn
        self._step = step
        self.reply = Reply()
        self.emitted = False

    async def run(self, client: AsyncOpenAI, request: dict[str, Any], config: Config) -> None:
        """Streams the reply into the turn; raises unless the model said that it was done."""
        first_token = config.limits.first_token_seconds
        await self._turn.check()
        try:
            async with asyncio.timeout(first_token) as waiting:
                # The stream's context closes its socket, whatever ends it.
                async with await client.chat.completions.create(**request) as stream:
                    await self._read(stream, waiting)
        except TimeoutError:
            raise TurnFailed(
                run_pb2.FAILURE_REASON_UPSTREAM_ERROR, f"The model said nothing within {first_token:g} s."
            ) from None
        if not self.reply.finish_reason:
            raise TurnFailed(
                run_pb2.FAILURE_REASON_UPSTREAM_TRUNCATED, "The model's stream ended before the model was done."
            )

    async def _read(self, stream: openai.AsyncStream[Any], waiting: asyncio.Timeout) -> None:
        try:
            async for added in self._pieces(stream):
                await self._emit(*added)
                if self.emitted or self.reply.begun:
                    waiting.reschedule(None)
        except openai.APIConnectionError:
            # What follows the model's last word is bookkeeping.
            if not self.reply.finish_reason:
                raise
        await self._emit(*self.reply.flush())

    async def _pieces(self, stream: openai.AsyncStream[Any]) -> AsyncIterator[tuple[str, str]]:
        """What each chunk adds. The SDK checks nothing of what a service sends, so anything may be in a chunk.

        What breaks after the model's last word breaks nothing.
        """
        try:
            async for chunk in stream:
                yield self.reply.feed(chunk)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            if self.reply.finish_reason:
                return
            raise TurnFailed(
                run_pb2.FAILURE_REASON_UPSTREAM_ERROR, "The model's service broke the chat-completions protocol."
            ) from error

    async def _emit(self, text: str, reasoning: str) -> None:
        if reasoning:
            self.emitted = True
            await self._turn.reason(self._step, reasoning)
        if text:
            self.emitted = True
            await self._turn.say(self._step, text)


def _passing(error: openai.APIError) -> bool:
    if isinstance(error, openai.APIStatusError):
        return error.status_code in _WORTH_ANOTHER_TRY or error.status_code >= 500
    return isinstance(error, openai.APIConnectionError)


def _pause(error: openai.APIError, tried: int) -> float:
    pause = random.uniform(0.25, 0.5) * 2.0 ** (tried - 1)  # noqa: S311 - spreads load, guards nothing
    asked = str(error.response.headers.get("Retry-After", "")) if isinstance(error, openai.APIStatusError) else ""
    return max(pause, min(float(asked), MAX_RETRY_AFTER_SECONDS)) if asked.isdecimal() else pause


def _failure(error: openai.APIError, reply: Reply) -> TurnFailed:
    """What people are told. The service's own words may quote the request or its key, so none of them is passed on."""
    if isinstance(error, openai.APIStatusError):
        return TurnFailed(
            run_pb2.FAILURE_REASON_UPSTREAM_ERROR, f"The model's service answered with status {error.status_code}."
        )
    if reply.begun:
        return TurnFailed(
            run_pb2.FAILURE_REASON_UPSTREAM_TRUNCATED, "The model's stream broke before the model was done."
        )
    if isinstance(error, openai.APIConnectionError):
        return TurnFailed(run_pb2.FAILURE_REASON_UPSTREAM_ERROR, "The model's service could not be reached.")
    return TurnFailed(run_pb2.FAILURE_REASON_UPSTREAM_ERROR, "The model's service reported an error in its stream.")


def _unique_keys(step: int, calls: Sequence[AskedCall]) -> list[str]:
    """The model's own ids where they can be told apart, else ids of ours."""
    # Repaired, since half an emoji in an id could not be told to the service again.
    ids = [repair(call.model_id) for call in calls]
    return [key if key and ids.count(key) == 1 else f"call_{step}_{index}" for index, key in enumerate(ids)]
