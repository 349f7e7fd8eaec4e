"""A run's turn as the session service sees it: order, lease, ledger, report (SPEC 3.3, 3.4, 3.6, 4.4, 4.5)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from turnkeeper.v1 import error_reason_pb2, reference_pb2, run_pb2, session_pb2
from turnkeeper.v1.runner_service_pb2 import ExecuteTurnRequest, Lease, TurnStart
from turnkeeper.v1.turn_service_pb2 import RecordedToolResult, ReportTurnStoppedRequest
from turnkeeper.wire import errors
from turnkeeper.wire.configs import Config
from turnkeeper.wire.errors import Refused, not_found

from runner_service.app import RunnerApp
from runner_service.harnesses.base import Harness, OpenHarness, Turn
from tests.far import model as m
from tests.far.gates import Gate, GateServer
from tests.far.model import ModelServer
from tests.far.tools import ToolServer
from tests.fixtures.client import Client
from tests.fixtures.journeys import scripted
from tests.runner.conftest import StartRunner, failure_of, openai_config, tool
from tests.runner.far_session import Dispatch, FarSession, bodies, duration

FENCED = Refused(error_reason_pb2.ERROR_REASON_ATTEMPT_FENCED)
USER = session_pb2.MESSAGE_ROLE_USER
ASSISTANT = session_pb2.MESSAGE_ROLE_ASSISTANT
TOOL = session_pb2.MESSAGE_ROLE_TOOL


@pytest.fixture
async def dispatcher(runner: RunnerApp, sessions: FarSession) -> AsyncIterator[Client]:
    """A dispatcher with a run token of attempt 3."""
    async with Client(sessions.address, runner.address, sessions.run_token(attempt=3)) as client:
        yield client


async def ended(dispatch: Dispatch) -> list[Any]:
    """The events of a turn that goes its way."""
    async with asyncio.timeout(10):
        await dispatch.finished
    assert await dispatch.code() is grpc.StatusCode.OK
    return list(dispatch.events)


async def report(sessions: FarSession, number: int = 1) -> ReportTurnStoppedRequest:
    """The report of that number, as soon as it came."""
    received: ReportTurnStoppedRequest = await sessions.received["ReportTurnStopped"].at(number)
    return received


@pytest.mark.spec("3.4")
async def test_the_turn_begins_before_its_prompt_is_made(
    dispatcher: Client, sessions: FarSession, model: ModelServer
) -> None:
    sessions.history = [session_pb2.Message(position=n, role=USER, text=f"m{n}") for n in range(1, 6)]
    model.queue(m.text("Hi"))
    assert failure_of(await ended(Dispatch(dispatcher, openai_config()))) == ""
    assert list(sessions.calls) == ["BeginTurn", "ResolveTurnContext", *["ListMessages"] * 3]
    begun = sessions.received["BeginTurn"][0]
    assert (begun.harness, begun.runner_store, begun.session_id) == ("openai", "store-1", "")
    assert (await model.prompt()).texts("user") == ["m1", "m2", "m3", "m4", "m5"]
    assert all(request.prompt_of_run_id for request in sessions.received["ListMessages"])


@pytest.mark.spec("3.4")
@pytest.mark.parametrize("refusal", [FENCED, not_found("session")], ids=["fenced", "deleted"])
async def test_a_refused_beginning_makes_no_prompt(
    dispatcher: Client, sessions: FarSession, model: ModelServer, refusal: Refused
) -> None:
    async def refuse(_: Any) -> None:
        raise refusal

    sessions.before["BeginTurn"] = refuse
    dispatch = Dispatch(dispatcher, openai_config())
    await dispatch.finished
    assert await dispatch.code() is grpc.StatusCode.ABORTED
    assert list((await report(sessions)).events) == []
    assert len(model.requests) == 0


@pytest.mark.spec("2.7")
async def test_every_call_of_the_history_has_one_result(
    dispatcher: Client, sessions: FarSession, model: ModelServer
) -> None:
    def asked(run: str, position: int, *calls: str) -> session_pb2.Message:
        called = [session_pb2.MessageToolCall(call_id=each, tool_name="t", arguments_json="{}") for each in calls]
        return session_pb2.Message(run_id=run, position=position, role=ASSISTANT, tool_calls=called)

    def told(run: str, position: int, call: str, text: str) -> session_pb2.Message:
        return session_pb2.Message(run_id=run, position=position, role=TOOL, tool_call_id=call, text=text)

    sessions.history = [
        session_pb2.Message(position=1, role=USER, text="first"),
        asked("r1", 2, "1.1.0", "1.1.1"),
        told("r1", 3, "1.1.1", "second result"),
        told("r1", 4, "1.1.0", "first result"),
        session_pb2.Message(position=5, run_id="r1", role=ASSISTANT, text="partial"),
        asked("r2", 6, "1.1.0", "1.1.1"),
        told("r2", 7, "1.1.0", ""),
        told("r2", 8, "9.9.9", "of no call"),
        session_pb2.Message(position=9, run_id="r2", role=ASSISTANT, text=" "),
        session_pb2.Message(position=10, role=USER, text="again"),
    ]
    model.queue(m.text("Hi"))
    # The far side refuses a prompt whose calls and results do not match.
    assert failure_of(await ended(Dispatch(dispatcher, openai_config()))) == ""
    prompt = await model.prompt()
    assert prompt.texts("tool") == ["first result", "second result", "interrupted", "interrupted"]
    keys = [call["id"] for message in prompt.messages for call in message.get("tool_calls", [])]
    assert len(set(keys)) == 4
    assert [message["role"] for message in prompt.messages] == [
        *("user", "assistant", "tool", "tool", "assistant", "assistant", "tool", "tool", "user")
    ]


@pytest.mark.spec("3.6")
async def test_a_call_is_recorded_before_and_after_it_is_made(
    dispatcher: Client, sessions: FarSession, model: ModelServer, tools: ToolServer
) -> None:
    held = tools.hold("/w")
    config = openai_config(tool("w", tools.url("/w")), tool("r", tools.url("/r"), effect="READ"))
    model.queue(m.text("Wait. "), m.tool_calls(m.Call("w", {"a": 1}, "model-id"), m.Call("r"), m.Call("no such!")))
    model.queue(m.text("Done."))
    dispatch = Dispatch(dispatcher, config)
    await tools.request(2)
    begun = {each.call_id: each for each in sessions.received["BeginToolCall"]}
    assert set(begun) == {"3.1.0", "3.1.1", "3.1.2"}
    write = begun["3.1.0"]
    assert (write.tool_name, write.arguments_json, write.model_call_id) == ("w", '{"a": 1}', "model-id")
    assert [begun[key].side_effect for key in sorted(begun)] == [True, False, False]
    # The text and the end of the step came before, and were stored.
    assert write.after_event == 2
    assert tools.of("/w")[0].headers["idempotency-key"] == "key-of-3.1.0"
    assert "idempotency-key" not in tools.of("/r")[0].headers
    held.open()
    await ended(dispatch)
    finished = {each.call_id: each for each in sessions.received["FinishToolCall"]}
    assert finished["3.1.0"].state == run_pb2.TOOL_CALL_STATE_SUCCEEDED
    assert finished["3.1.2"].state == run_pb2.TOOL_CALL_STATE_FAILED
    assert begun["3.1.2"].tool_name == "no_such_"


@pytest.mark.spec("5.2")
async def test_no_call_begins_before_its_text_is_stored(
    dispatcher: Client, sessions: FarSession, tools: ToolServer
) -> None:
    config = scripted(
        {"text": "first"}, {"tool_calls": [{"name": "t", "arguments": {}}]}, tools=[tool("t", tools.url("/t"))]
    )
    dispatch = Dispatch(dispatcher, config, stores=False)
    await dispatch.events.at(2)
    await asyncio.wait({dispatch.finished}, timeout=0.3)
    assert "BeginToolCall" not in list(sessions.calls)
    await dispatch.cancel()
    # What was never stored comes with the report.
    assert bodies(list((await report(sessions)).events)) == ["text_delta", "message_completed"]


@pytest.mark.spec("3.6")
async def test_a_recorded_result_is_used_and_the_call_not_made(
    dispatcher: Client, sessions: FarSession, model: ModelServer, tools: ToolServer
) -> None:
    sessions.recorded["3.1.0"] = RecordedToolResult(state=run_pb2.TOOL_CALL_STATE_SUCCEEDED, result="as before")
    model.queue(m.tool_calls(m.Call("t")))
    model.queue(m.text("Done."))
    await ended(Dispatch(dispatcher, openai_config(tool("t", tools.url("/t")))))
    assert (await model.prompt(2)).texts("tool") == ["as before"]
    assert len(tools.requests) == 0
    assert len(sessions.received["FinishToolCall"]) == 0


@pytest.mark.parametrize(
    ("more", "word"),
    [({"bindings": {"v": "$ctx.workflow.variant.id"}}, "TOOL_BINDING_UNRESOLVED"), ({"needs_approval": True}, "human")],
)
async def test_what_cannot_be_done_yet_sends_nothing(
    dispatcher: Client, model: ModelServer, tools: ToolServer, more: dict[str, Any], word: str
) -> None:
    model.queue(m.tool_calls(m.Call("t")))
    model.queue(m.text("Done."))
    await ended(Dispatch(dispatcher, openai_config(tool("t", tools.url("/t"), **more))))
    assert word in (await model.prompt(2)).texts("tool")[0]
    assert len(tools.requests) == 0


@pytest.mark.spec("4.4", "4.5")
async def test_a_cancelled_call_stops_everything_and_is_reported(
    dispatcher: Client, sessions: FarSession, model: ModelServer, tools: ToolServer
) -> None:
    tools.hold("/slow")
    begun = Gate()

    async def hold_late(request: Any) -> None:
        if request.tool_name == "late":
            await begun.passage()

    sessions.before["BeginToolCall"] = hold_late
    names = ("done", "slow", "late")
    model.queue(m.text("So"), m.tool_calls(*(m.Call(name) for name in names)))
    dispatch = Dispatch(dispatcher, openai_config(*(tool(name, tools.url(f"/{name}")) for name in names)))
    await sessions.received["FinishToolCall"].at()
    await tools.request(2)
    await begun.reached()
    await dispatch.cancel()
    await tools.disconnected(within=1.0)
    reported = await report(sessions)
    assert {call.call_id: call.state for call in reported.stopped_tool_calls} == {
        "3.1.1": run_pb2.TOOL_CALL_STATE_UNKNOWN,
        "3.1.2": run_pb2.TOOL_CALL_STATE_NOT_MADE,
    }
    assert bodies(list(reported.events)) == []  # all was stored, and no end is invented
    assert len(model.requests) == 1
    assert [request.path for request in tools.requests] == ["/done", "/slow"]


@pytest.mark.spec("4.5")
async def test_a_result_that_was_not_recorded_comes_before_the_report(
    dispatcher: Client, sessions: FarSession, model: ModelServer, tools: ToolServer
) -> None:
    gate = Gate()

    async def hold_first(_: Any) -> None:
        if len(sessions.received["FinishToolCall"]) == 1:
            await gate.passage()

    sessions.before["FinishToolCall"] = hold_first
    model.queue(m.tool_calls(m.Call("t", {"a": 1})))
    dispatch = Dispatch(dispatcher, openai_config(tool("t", tools.url("/t"))))
    await gate.reached()
    await dispatch.cancel()
    assert list((await report(sessions)).stopped_tool_calls) == []
    assert list(sessions.calls)[-2:] == ["FinishToolCall", "ReportTurnStopped"]
    assert sessions.received["FinishToolCall"][1].result == '{"a":1}'


@pytest.mark.spec("4.5")
async def test_a_report_is_repeated_until_it_is_taken(
    dispatcher: Client, sessions: FarSession, gates: GateServer
) -> None:
    async def refuse_twice(_: Any) -> None:
        if len(sessions.received["ReportTurnStopped"]) < 3:
            raise Refused(error_reason_pb2.ERROR_REASON_INTERNAL)

    sessions.before["ReportTurnStopped"] = refuse_twice
    dispatch = Dispatch(dispatcher, scripted({"text": "so far"}, {"wait_gate": "g"}), stores=False)
    await gates.reached("g")
    await dispatch.cancel()
    await gates.disconnected("g", within=1.0)
    last = await report(sessions, 3)
    assert [event.text_delta.text for event in last.events] == ["so far"]


@pytest.mark.spec("4.5")
async def test_not_found_ends_the_repetitions(
    start_runner: StartRunner, sessions: FarSession, gates: GateServer
) -> None:
    async def refuse(_: Any) -> None:
        raise not_found("session")

    sessions.before["ReportTurnStopped"] = refuse
    async with start_runner() as runner, Client(sessions.address, runner.address, sessions.run_token()) as client:
        dispatch = Dispatch(client, scripted({"wait_gate": "g"}))
        await gates.reached("g")
        await dispatch.cancel()
        await report(sessions)
    # The runner is down, so nothing repeats any more.
    assert len(sessions.received["ReportTurnStopped"]) == 1


@pytest.mark.spec("4.5")
async def test_an_end_that_was_not_acknowledged_is_reported(dispatcher: Client, sessions: FarSession) -> None:
    dispatch = Dispatch(dispatcher, scripted({"text": "all of it"}), stores=False)
    await dispatch.events.at(3)
    await dispatch.cancel()
    reported = await report(sessions)
    assert bodies(list(reported.events)) == ["text_delta", "message_completed", "turn_ended"]
    assert reported.events[-1].turn_ended.HasField("completed")


async def test_an_end_that_was_acknowledged_is_not_reported(start_runner: StartRunner, sessions: FarSession) -> None:
    async with start_runner() as runner, Client(sessions.address, runner.address, sessions.run_token()) as client:
        await ended(Dispatch(client, scripted({"text": "all of it"})))
    assert len(sessions.received["ReportTurnStopped"]) == 0


@pytest.mark.spec("3.3")
async def test_nothing_is_asked_of_a_model_before_the_lease_is_known(
    dispatcher: Client, sessions: FarSession, model: ModelServer
) -> None:
    dispatch = Dispatch(dispatcher, openai_config(), lease=0.4, renews=False)
    await dispatch.finished
    assert await dispatch.code() is grpc.StatusCode.ABORTED
    await report(sessions)
    assert "BeginTurn" in list(sessions.calls)
    assert len(model.requests) == 0


@pytest.mark.spec("3.3")
async def test_the_turn_stops_by_itself_when_its_lease_is_over(
    dispatcher: Client, sessions: FarSession, model: ModelServer
) -> None:
    model.queue(m.text("Once"), m.hold(Gate()))
    dispatch = Dispatch(dispatcher, openai_config(), lease=0.5)
    await dispatch.events.at()
    dispatch.renews = False
    await model.disconnected(within=2.0)
    await dispatch.finished
    assert await dispatch.code() is grpc.StatusCode.ABORTED
    await report(sessions)


@pytest.mark.spec("3.3")
async def test_a_renewed_lease_goes_on(dispatcher: Client, gates: GateServer) -> None:
    dispatch = Dispatch(dispatcher, scripted({"wait_gate": "g"}), lease=0.4)
    await gates.reached("g")
    await asyncio.wait({dispatch.finished}, timeout=1.2)
    gates.open("g")
    assert failure_of(await ended(dispatch)) == ""


@pytest.mark.spec("3.2")
async def test_a_fenced_call_stops_the_turn_whatever_the_harness_makes_of_it(
    dispatcher: Client, sessions: FarSession, model: ModelServer, tools: ToolServer
) -> None:
    async def refuse(_: Any) -> None:
        raise FENCED

    sessions.before["BeginToolCall"] = refuse
    model.queue(m.tool_calls(m.Call("t")))
    dispatch = Dispatch(dispatcher, openai_config(tool("t", tools.url("/t"))))
    await dispatch.finished
    assert await dispatch.code() is grpc.StatusCode.ABORTED
    assert "turn_ended" not in bodies(list((await report(sessions)).events))
    assert (len(model.requests), len(tools.requests)) == (1, 0)


async def test_a_session_service_that_is_away_for_a_moment_is_waited_for(
    dispatcher: Client, sessions: FarSession
) -> None:
    async def away_once(_: Any) -> None:
        if list(sessions.calls).count("BeginTurn") == 1:
            raise Refused(error_reason_pb2.ERROR_REASON_STORAGE_UNAVAILABLE)

    sessions.before["BeginTurn"] = away_once
    assert failure_of(await ended(Dispatch(dispatcher, scripted({"text": "x"})))) == ""


@pytest.mark.spec("3.7")
async def test_a_turn_that_takes_too_long_is_stopped_and_then_ends(
    dispatcher: Client, sessions: FarSession, tools: ToolServer
) -> None:
    tools.hold("/slow")
    config = scripted(
        {"tool_calls": [{"name": "slow", "arguments": {}}]},
        tools=[tool("slow", tools.url("/slow"))],
        limits={"turn_seconds": 0.3},
    )
    events = await ended(Dispatch(dispatcher, config))
    assert failure_of(events) == "FAILURE_REASON_TURN_TIMEOUT"
    await tools.disconnected(within=1.0)
    [closed] = sessions.received["FinishToolCall"]
    assert (closed.state, closed.result) == (run_pb2.TOOL_CALL_STATE_UNKNOWN, "interrupted")


class Stubborn(Harness):
    """Catches the cancellation once and goes on."""

    name = "stubborn"
    description = "Catches the cancellation once and goes on."

    @asynccontextmanager
    async def open(self, config: Config) -> AsyncIterator[OpenHarness]:
        yield self

    async def play(self, turn: Turn) -> None:
        await turn.say(1, "started")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()


class Deaf(Stubborn):
    """Takes no for no answer: goes on asking its model and saying things."""

    asked = 0

    async def play(self, turn: Turn) -> None:
        await turn.say(1, "started")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                await turn.check()
                Deaf.asked += 1
            except Exception:
                return


@pytest.mark.spec("4.4")
@pytest.mark.parametrize("harness", [Stubborn, Deaf])
async def test_a_harness_that_catches_the_cancellation_is_stopped_all_the_same(
    start_runner: StartRunner, sessions: FarSession, harness: type[Harness]
) -> None:
    Deaf.asked = 0
    config = json.dumps({"schema_version": 1, "harness": "stubborn"})
    async with (
        start_runner(harnesses={"stubborn": harness}) as runner,
        Client(sessions.address, runner.address, sessions.run_token()) as client,
    ):
        dispatch = Dispatch(client, config)
        await dispatch.events.at()
        await dispatch.cancel()
        reported = await sessions.received["ReportTurnStopped"].at(within=2.0)
        assert "turn_ended" not in bodies(list(reported.events))
        assert Deaf.asked == 0
        # The runner is as well as before.
        assert failure_of(await ended(Dispatch(client, scripted({"text": "x"})))) == ""


@pytest.mark.spec("3.7")
async def test_after_its_time_a_turn_asks_no_model_whatever_its_harness_does(
    start_runner: StartRunner, sessions: FarSession
) -> None:
    Deaf.asked = 0
    config = json.dumps({"schema_version": 1, "harness": "deaf", "limits": {"turn_seconds": 0.2}})
    async with (
        start_runner(harnesses={"deaf": Deaf}) as runner,
        Client(sessions.address, runner.address, sessions.run_token()) as client,
    ):
        assert failure_of(await ended(Dispatch(client, config))) == "FAILURE_REASON_TURN_TIMEOUT"
    assert Deaf.asked == 0


class Broken(Stubborn):
    """Fails in a way that nobody foresaw."""

    async def play(self, turn: Turn) -> None:
        raise ZeroDivisionError("the password is hunter2")


class CancelsItself(Stubborn):
    """Raises a cancellation that nobody asked for."""

    async def play(self, turn: Turn) -> None:
        raise asyncio.CancelledError


@pytest.mark.parametrize("harness", [Broken, CancelsItself])
async def test_a_harness_that_breaks_fails_its_turn_and_says_nothing_of_itself(
    start_runner: StartRunner, sessions: FarSession, harness: type[Harness]
) -> None:
    async with (
        start_runner(harnesses={"broken": harness}) as runner,
        Client(sessions.address, runner.address, sessions.run_token()) as client,
    ):
        events = await ended(Dispatch(client, json.dumps({"schema_version": 1, "harness": "broken"})))
    assert failure_of(events) == "FAILURE_REASON_HARNESS_ERROR"
    assert "hunter2" not in events[-1].turn_ended.failed.message


async def test_a_peer_that_is_behind_makes_the_harness_wait(
    dispatcher: Client, sessions: FarSession, model: ModelServer
) -> None:
    model.queue(m.text(*(["x" * 10_000] * 300)))
    dispatch = Dispatch(dispatcher, openai_config(), stores=False, lease=1.0)
    await asyncio.wait({dispatch.finished}, timeout=1.0)
    await dispatch.cancel()
    kept = sum(len(event.text_delta.text) for event in (await report(sessions)).events)
    assert 2**20 <= kept < 2**20 + 2 * 16_384


@pytest.mark.spec("6.4")
@pytest.mark.parametrize(
    "start",
    [
        TurnStart(config_json=scripted(), lease=Lease(duration=duration(1), probe_interval=duration(1))),
        TurnStart(config_json=scripted()),
    ],
)
async def test_what_a_runs_start_may_not_say(dispatcher: Client, start: TurnStart) -> None:
    if start.HasField("lease"):
        start.references.add(
            family=reference_pb2.REFERENCE_FAMILY_WORKFLOW, level=reference_pb2.REFERENCE_LEVEL_ARTIFACT, slug="a"
        )
    stream = dispatcher.runner.ExecuteTurn()
    await stream.write(ExecuteTurnRequest(start=start))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(stream))
    assert errors.reason(caught.value) == "INVALID_FIELD"


@pytest.mark.spec("11.4")
async def test_a_stopping_runner_gives_its_turns_the_grace_then_stops_and_reports_them(
    start_runner: StartRunner, sessions: FarSession, gates: GateServer
) -> None:
    async with AsyncExitStack() as outlives:
        async with start_runner() as runner:
            client = await outlives.enter_async_context(Client(sessions.address, runner.address, sessions.run_token()))
            quick = Dispatch(client, scripted({"wait_gate": "quick"}))
            stuck = Dispatch(client, scripted({"text": "so far"}, {"wait_gate": "stuck"}))
            await gates.reached("quick")
            await gates.reached("stuck")
            asyncio.get_running_loop().call_later(0.3, gates.open, "quick")
        assert failure_of(await ended(quick)) == ""
        await gates.disconnected("stuck")
        assert len(sessions.received["ReportTurnStopped"]) == 1
        await stuck.finished
