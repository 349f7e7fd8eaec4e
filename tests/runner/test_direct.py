"""Direct turns: a user's own call, with an inline config and nothing stored (SPEC 4.10)."""

import asyncio
import json

import grpc
import pytest
from turnkeeper.v1.runner_service_pb2 import ExecuteTurnRequest, Lease, ListHarnessesRequest, TurnStart
from turnkeeper.wire import errors

from tests.far import model as m
from tests.far.gates import Gate
from tests.fixtures.client import Client
from tests.fixtures.issuer import ALL_SCOPES
from tests.fixtures.journeys import scripted
from tests.fixtures.pair import Pair
from tests.runner.conftest import Direct, bodies, direct_turn, duration, failure_of, openai_config, text_of, tool

# Such a turn stores nothing, so one kind of database will do.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


async def test_a_script_is_played_with_numbered_events(direct: Direct) -> None:
    events = await direct(
        scripted(
            {"text": "Good "},
            {"reasoning": "hm"},
            {"text": "day."},
            {"usage": {"input_tokens": 3, "output_tokens": 2}},
        )
    )
    assert text_of(events) == "Good day."
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert bodies(events)[-2:] == ["message_completed", "turn_ended"]
    assert failure_of(events) == ""


async def test_a_script_that_fails(direct: Direct) -> None:
    events = await direct(scripted({"text": "so far"}, {"fail": "as asked"}))
    assert failure_of(events) == "FAILURE_REASON_SCRIPTED"
    assert events[-1].turn_ended.failed.message == "as asked"


async def test_an_unknown_harness(direct: Direct) -> None:
    events = await direct(json.dumps({"schema_version": 1, "harness": "nobody"}))
    assert failure_of(events) == "FAILURE_REASON_HARNESS_UNKNOWN"


@pytest.mark.spec("4.10", "4.4")
async def test_cancelling_the_call_closes_the_models_socket(ada: Client, pair: Pair) -> None:
    gate = Gate()
    pair.model.queue(m.text("Once"), m.hold(gate), m.text(" more"))
    stream = ada.runner.ExecuteTurn()
    await stream.write(ExecuteTurnRequest(start=TurnStart(input="Hello", config_json=openai_config())))
    async for response in stream:
        if response.event.HasField("text_delta"):
            break
    stream.cancel()
    await pair.model.disconnected(within=1.0)
    assert len(pair.model.requests) == 1


@pytest.mark.spec("4.10", "4.4")
async def test_the_calls_deadline_closes_the_models_socket(direct: Direct, pair: Pair) -> None:
    pair.model.queue(m.text("Once"), m.hold(Gate()))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await direct(openai_config(), timeout=1.5)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await pair.model.disconnected(within=1.0)


@pytest.mark.spec("4.10", "4.4")
async def test_cancelling_the_call_closes_the_tools_socket(ada: Client, pair: Pair) -> None:
    pair.tools.hold("/slow")
    pair.model.queue(m.tool_calls(m.Call("slow")))
    stream = ada.runner.ExecuteTurn()
    config = openai_config(tool("slow", pair.tools.url("/slow")))
    await stream.write(ExecuteTurnRequest(start=TurnStart(input="Hello", config_json=config)))
    reading = asyncio.ensure_future(anext(aiter(stream)))
    await pair.tools.request()
    stream.cancel()
    await pair.tools.disconnected(within=1.0)
    await asyncio.wait({reading})
    assert len(pair.model.requests) == 1


@pytest.mark.spec("4.10", "4.4")
async def test_cancelling_the_call_closes_the_gates_socket(ada: Client, pair: Pair) -> None:
    stream = ada.runner.ExecuteTurn()
    await stream.write(ExecuteTurnRequest(start=TurnStart(input="x", config_json=scripted({"wait_gate": "g"}))))
    await pair.gates.reached("g")
    stream.cancel()
    await pair.gates.disconnected("g", within=1.0)


async def test_a_closed_gate_fails_the_turn(direct: Direct, pair: Pair) -> None:
    running = asyncio.create_task(direct(scripted({"wait_gate": "g"})))
    await pair.gates.reached("g")
    pair.gates.break_off("g")
    assert failure_of(await running) == "FAILURE_REASON_HARNESS_ERROR"


@pytest.mark.parametrize(
    ("start", "code", "reason"),
    [
        (TurnStart(input="x", config_json="{"), grpc.StatusCode.INVALID_ARGUMENT, "CONFIG_INVALID"),
        (TurnStart(config_json=scripted()), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
        (
            TurnStart(
                input="x",
                config_json=scripted(),
                lease=Lease(duration=duration(1), probe_interval=duration(1)),
            ),
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_FIELD",
        ),
    ],
    ids=["config", "no input", "lease"],
)
async def test_what_a_direct_start_may_not_say(
    ada: Client, start: TurnStart, code: grpc.StatusCode, reason: str
) -> None:
    stream = ada.runner.ExecuteTurn()
    await stream.write(ExecuteTurnRequest(start=start))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(stream))
    assert (caught.value.code(), errors.reason(caught.value)) == (code, reason)


async def test_a_call_that_starts_with_nothing(ada: Client) -> None:
    stream = ada.runner.ExecuteTurn()
    await stream.done_writing()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(stream))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.spec("1.5")
async def test_a_harness_is_offered_only_the_tools_that_the_callers_scopes_allow(pair: Pair) -> None:
    config = openai_config(
        tool("open", pair.tools.url("/open")), tool("shut", pair.tools.url("/shut"), scopes=["secrets:write"])
    )
    scopes = [scope for scope in ALL_SCOPES if scope != "secrets:write"]
    pair.model.queue(m.tool_calls(m.Call("shut"), m.Call("open")))
    pair.model.queue(m.text("done"))
    assert failure_of(await direct_turn(pair.client(scopes=scopes), config)) == ""
    assert [offered["name"] for offered in (await pair.model.prompt()).tools] == ["open"]
    assert (await pair.model.prompt(2)).texts("tool")[0].startswith("There is no tool 'shut'")
    assert [request.path for request in pair.tools.requests] == ["/open"]


async def test_the_harnesses_are_listed(ada: Client) -> None:
    response = await ada.runner.ListHarnesses(ListHarnessesRequest())
    assert [harness.name for harness in response.harnesses] == ["openai", "scripted"]
    assert all(harness.description and harness.tools_visible for harness in response.harnesses)
