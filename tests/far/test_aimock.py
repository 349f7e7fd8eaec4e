"""The third-party model server starts, streams a tool call and journals what it was asked."""

from openai import AsyncOpenAI

from tests.fixtures.aimock import StartAimock

CALL = {
    "match": {"userMessage": "weather", "hasToolResult": False},
    "response": {"toolCalls": [{"id": "call_1", "name": "get_weather", "arguments": {"city": "Oslo"}}]},
}


async def test_a_tool_call_arrives_over_the_real_sdk(start_aimock: StartAimock) -> None:
    async with start_aimock([CALL]) as aimock, AsyncOpenAI(base_url=aimock.base_url, api_key="none") as client:
        stream = await client.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "the weather?"}], stream=True
        )
        async with stream:
            chunks = [chunk async for chunk in stream]
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        functions = [call.function for delta in deltas for call in delta.tool_calls or [] if call.function]
        assert functions[0].name == "get_weather"
        assert "".join(function.arguments or "" for function in functions) == '{"city":"Oslo"}'
        assert [entry["path"] for entry in await aimock.journal()] == ["/v1/chat/completions"]
