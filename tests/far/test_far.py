"""The stand-ins show what the tests believe of them: a stream arrives whole, and a hang-up is seen at once."""

import asyncio
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, AsyncStream, BadRequestError
from openai.types.chat import ChatCompletionChunk

from tests.far.gates import Gate, GateServer
from tests.far.model import Call, ModelServer, drip, hold, text, tool_calls, truncated, usage
from tests.far.tools import ToolServer, json_reply

PROMPT: list[Any] = [{"role": "user", "content": "hello"}]


def _client(model: ModelServer) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=model.base_url, api_key="none", max_retries=0)


async def _open(client: AsyncOpenAI, messages: list[Any]) -> AsyncStream[ChatCompletionChunk]:
    return await client.chat.completions.create(model="m", messages=messages, stream=True)


async def test_a_reply_arrives_whole_over_the_real_sdk() -> None:
    async with ModelServer() as model, _client(model) as client:
        model.queue(text("Hel", "lo"), tool_calls(Call("weather", {"city": "Oslo"}), Call("time")), usage(3, 2))
        async with await _open(client, PROMPT) as stream:
            chunks = [chunk async for chunk in stream]
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
        calls = [call for choice in choices for call in choice.delta.tool_calls or []]
        assert "".join(choice.delta.content or "" for choice in choices) == "Hello"
        functions = [(call.index, call.function) for call in calls if call.function]
        assert [function.name for _, function in functions if function.name] == ["weather", "time"]
        assert "".join(function.arguments or "" for index, function in functions if index == 0) == '{"city": "Oslo"}'
        assert choices[-1].finish_reason == "tool_calls"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 5
        assert (await model.prompt()).messages == PROMPT
        assert len(model.hang_ups) == 0


async def test_a_hang_up_in_mid_stream_is_seen() -> None:
    async with ModelServer() as model, _client(model) as client:
        gate = Gate()
        model.queue(text("Hel"), hold(gate), text("lo"))
        async with await _open(client, PROMPT):
            await gate.reached()
        await model.disconnected()


async def test_a_hang_up_between_two_bytes_is_seen() -> None:
    async with ModelServer() as model, httpx2.AsyncClient() as client:
        model.queue(drip("slow", seconds=60))
        body = {"model": "m", "messages": PROMPT, "stream": True}
        async with client.stream("POST", f"{model.base_url}/chat/completions", json=body) as response:
            assert await anext(response.aiter_raw()) == b"d"
        await model.disconnected()


@pytest.mark.parametrize("cleanly", [True, False])
async def test_a_truncated_stream_has_no_end_marker(cleanly: bool) -> None:
    async with ModelServer() as model, httpx2.AsyncClient() as client:
        model.queue(text("Hel"), truncated(cleanly=cleanly))
        body = {"model": "m", "messages": PROMPT, "stream": True}
        seen = b""
        try:
            async with client.stream("POST", f"{model.base_url}/chat/completions", json=body) as response:
                async for piece in response.aiter_raw():
                    seen += piece
        except httpx2.RemoteProtocolError:
            assert not cleanly
        assert b"Hel" in seen
        assert b"[DONE]" not in seen


async def test_a_call_without_its_result_is_refused() -> None:
    async with ModelServer() as model, _client(model) as client:
        model.queue(text("never sent"))
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages = [*PROMPT, {"role": "assistant", "tool_calls": [call]}, *PROMPT]
        with pytest.raises(BadRequestError, match="c1"):
            await _open(client, messages)


async def test_a_tool_holds_its_reply_and_sees_the_hang_up() -> None:
    async with ToolServer() as tools, httpx2.AsyncClient() as client:
        tools.queue("/weather", json_reply({"celsius": 7}))
        assert (await client.get(tools.url("/weather"))).json() == {"celsius": 7}
        gate = tools.hold("/weather")
        waiting = asyncio.create_task(client.get(tools.url("/weather")))
        await gate.reached()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await tools.disconnected()).path == "/weather"


async def test_a_gate_lets_through_breaks_off_and_sees_the_hang_up() -> None:
    async def wait(name: str) -> bytes:
        reader, writer = await asyncio.open_connection(*gates.address.split(":"))
        try:
            writer.write(f"{name}\n".encode())
            return await reader.readline()
        finally:
            writer.close()
            await writer.wait_closed()

    async with GateServer() as gates, asyncio.TaskGroup() as waits:
        passing, broken, leaving = (waits.create_task(wait(name)) for name in ("open", "broken", "left"))
        for name in ("open", "broken", "left"):
            await gates.reached(name)
        gates.open("open")
        gates.break_off("broken")
        leaving.cancel()
        await gates.disconnected("left")
        assert await passing == b"go\n"
        assert await broken == b""
        assert await wait("open") == b"go\n"
