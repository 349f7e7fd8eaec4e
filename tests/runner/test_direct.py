"""Direct turns: a user's own call, with an inline config and nothing stored (SPEC 4.10)."""

import asyncio
import json

import grpc
import pytest
from turnkeeper.v1.runner_service_pb2 import ExecuteTurnRequest, Lease, ListHarnessesRequest, TurnStart
from turnkeeper.wire import errors

from runner_service.app import RunnerApp
from tests.far import model as m
from tests.far.gates import Gate, GateServer
from tests.far.model import ModelServer
from tests.far.tools import ToolServer
from tests.fixtures.client import Client
from tests.fixtures.issuer import ALL_SCOPES, Issuer
from tests.fixtures.journeys import scripted
from tests.runner.conftest import Direct, failure_of, openai_config, text_of, tool
from tests.runner.far_session import FarSession, bodies, duration


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
async def test_cancelling_the_call_closes_the_models_socket(ada: Client, model: ModelServer) -> None:
    gate = Gate()
    model.queue(m.text("Once"), m.hold(gate), m.text(" more"))
    stream = ada.runner.ExecuteTurn()
    await stream.write(ExecuteTurnRequest(start=TurnStart(input="Hello", config_json=openai_config())))
    async for response in stream:
        if response.event.HasField("text_delta"):
            break
    stream.cancel()
    await model.disconnected(within=1.0)
    assert len(model.requests) == 1


@pytest.mark.spec("4.10", "4.4")
async def test_the_calls_deadline_closes_the_models_socket(direct: Direct, model: ModelServer) -> None:
    model.queue(m.text("Once"), m.hold(Gate()))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await direct(openai_config(), timeout=0.5)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await model.disconnected(within=1.0)


@pytest.mark.spec("4.10", "4.4")
async def test_cancelling_the_call_closes_the_tools_socket(ada: Client, model: ModelServer, tools: ToolServer) -> None:
    tools.hold("/slow")
    model.queue(m.tool_calls(m.Call("slow")))
    stream = ada.runner.ExecuteTurn()
    config = openai_config(tool("slow", tools.url("/slow")))
    await stream.write(ExecuteTurnRequest(start=TurnStart(input="Hello", config_json=config)))
    reading = asyncio.ensure_future(anext(aiter(stream)))
    await tools.request()
    stream.cancel()
    await tools.disconnected(within=1.0)
    await asyncio.wait({reading})
    assert len(model.requests) == 1


@pytest.mark.spec("4.10", "4.4")
async def test_cancelling_the_call_closes_the_gates_socket(ada: Client, gates: GateServer) -> None:
    stream = ada.runner.ExecuteTurn()
    await stream.write(ExecuteTurnRequest(start=TurnStart(input="x", config_json=scripted({"wait_gate": "g"}))))
    await gates.reached("g")
    stream.cancel()
    await gates.disconnected("g", within=1.0)


async def test_a_closed_gate_fails_the_turn(direct: Direct, gates: GateServer) -> None:
    running = asyncio.create_task(direct(scripted({"wait_gate": "g"})))
    await gates.reached("g")
    gates.break_off("g")
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
async def test_a_harness_is_offered_only_the_tools_that_the_callers_scopes_allow(
    runner: RunnerApp, issuer: Issuer, sessions: FarSession, model: ModelServer, tools: ToolServer
) -> None:
    config = openai_config(tool("open", tools.url("/open")), tool("shut", tools.url("/shut"), scopes=["secrets:write"]))
    scopes = [scope for scope in ALL_SCOPES if scope != "secrets:write"]
    model.queue(m.tool_calls(m.Call("shut"), m.Call("open")))
    model.queue(m.text("done"))
    async with Client(sessions.address, runner.address, issuer.token(scopes=scopes)) as client:
        stream = client.runner.ExecuteTurn()
        await stream.write(ExecuteTurnRequest(start=TurnStart(input="x", config_json=config)))
        assert failure_of([response.event async for response in stream]) == ""
    assert [offered["name"] for offered in (await model.prompt()).tools] == ["open"]
    assert (await model.prompt(2)).texts("tool")[0].startswith("There is no tool 'shut'")
    assert [request.path for request in tools.requests] == ["/open"]


async def test_the_harnesses_are_listed(ada: Client) -> None:
    response = await ada.runner.ListHarnesses(ListHarnessesRequest())
    assert [harness.name for harness in response.harnesses] == ["openai", "scripted"]
    assert all(harness.description and harness.tools_visible for harness in response.harnesses)
