"""What a runner says of a turn whose call is over, and until when it says it (SPEC 4.4, 4.5)."""

import asyncio

import grpc
import pytest
from turnkeeper.v1 import run_pb2, session_pb2
from turnkeeper.v1.session_service_pb2 import DeleteSessionRequest

from session_service.runs.model import RunKey
from session_service.runs.store import lock
from tests.far import model as m
from tests.far.gates import Gate
from tests.far.turn_link import EVENTS
from tests.fixtures.journeys import (
    cancel,
    ended,
    follow,
    get,
    messages,
    new_session,
    scripted,
    start,
    states,
    text_of,
    texts,
    until,
)
from tests.fixtures.pair import Pair, StartPair
from tests.runner.conftest import Logs, openai_config, tool

CANCELLED = run_pb2.RUN_STATE_CANCELLED
COMPLETED = run_pb2.RUN_STATE_COMPLETED
NOT_MADE = run_pb2.TOOL_CALL_STATE_NOT_MADE
SUCCEEDED = run_pb2.TOOL_CALL_STATE_SUCCEEDED
REPORT = "ReportTurnStopped"

PATIENT = {"turn_link": True, "runner": {"shutdown_grace_seconds": 8.0}}
"""A pair whose runner, when it is stopped, waits for its reports."""


@pytest.mark.spec("4.5", "4.4", "2.7")
async def test_what_was_never_stored_comes_with_the_report(linked: Pair) -> None:
    ada = linked.client()
    session_id = await new_session(ada)
    linked.turn_link.hold(EVENTS)
    run = await start(ada, session_id, {"text": "so far"}, {"wait_gate": "hold"})
    turn = await linked.turn_link.turns.at()
    await turn.event("text_delta")
    await linked.gates.reached("hold")

    await cancel(ada, run.run_id)

    await linked.gates.disconnected("hold")
    done = await ended(ada, run.run_id)
    assert (done.state, done.cancel.confirmed) == (CANCELLED, True)
    assert await turn.status() is grpc.StatusCode.CANCELLED
    assert [event.WhichOneof("body") for event in turn.events] == ["text_delta"]  # and no end is invented
    [_, said] = await messages(ada, session_id)
    assert (said.text, said.status) == ("so far", session_pb2.MESSAGE_STATUS_INCOMPLETE)


@pytest.mark.spec("4.5")
@pytest.mark.parametrize("lane", [EVENTS, "stored"])
async def test_an_end_that_was_not_acknowledged_is_reported(start_pair: StartPair, logs: Logs, lane: str) -> None:
    async with start_pair(**PATIENT) as pair:
        ada = pair.client()
        pair.turn_link.hold(lane)
        run = await start(ada, await new_session(ada), {"text": "all of it"})
        turn = await pair.turn_link.turns.at()
        await turn.event("turn_ended")
        if lane == "stored":
            await ended(ada, run.run_id)  # the dispatcher has it, and the runner is not told

        turn.break_off()
        await pair.stop_runner()

        assert logs.answers()[-1] == REPORT
        events = await follow(ada, run.run_id)
        assert (states(events), text_of(events)) == (["QUEUED", "RUNNING", "COMPLETED"], "all of it")


@pytest.mark.spec("4.5")
async def test_an_end_that_was_acknowledged_is_not_reported(start_pair: StartPair, logs: Logs) -> None:
    async with start_pair(**PATIENT) as pair:
        ada = pair.client()
        await ended(ada, (await start(ada, await new_session(ada))).run_id)
        await pair.stop_runner()
        assert "BeginTurn" in logs.answers()
        assert REPORT not in logs.answers()
        assert await (await pair.turn_link.turns.at()).status() is grpc.StatusCode.OK


@pytest.mark.spec("4.5")
async def test_a_report_is_repeated_until_it_is_taken(start_pair: StartPair, logs: Logs) -> None:
    async with start_pair(session={"confirm_seconds": 15.0}) as pair:
        ada = pair.client()
        run = await start(ada, await new_session(ada), {"text": "so far"}, {"wait_gate": "hold"})
        await until(ada, run.run_id, "text_delta")
        await pair.gates.reached("hold")
        pair.link.cut()

        await cancel(ada, run.run_id)
        await pair.gates.disconnected("hold")
        await pair.link.refused(6)  # for longer than the channel's own retries of one call
        pair.link.mend()

        done = await ended(ada, run.run_id)
        assert (done.state, done.cancel.confirmed) == (CANCELLED, True)
        assert logs.answers().count(REPORT) == 1


@pytest.mark.spec("4.5", "9.5")
async def test_not_found_ends_the_repetitions(start_pair: StartPair, logs: Logs) -> None:
    async with start_pair(runner={"shutdown_grace_seconds": 8.0}) as pair:
        ada = pair.client()
        session_id = await new_session(ada)
        run = await start(ada, session_id, {"text": "x"}, {"wait_gate": "hold"})
        await until(ada, run.run_id, "text_delta")
        await pair.gates.reached("hold")
        pair.link.hold()
        await ada.sessions.DeleteSession(DeleteSessionRequest(session_id=session_id))
        await pair.link.withheld()  # the report
        key = RunKey("acme", run.run_id)
        async with asyncio.timeout(30):
            while await pair.session.storage.read("acme", lambda connection: lock(connection, key)):
                pass  # each look is a database read; the sweeper works in between

        pair.link.release()
        await pair.stop_runner()  # waits for whatever is still repeated

        assert [call for call in logs.answers() if call.startswith(REPORT)] == [f"{REPORT} RESOURCE_NOT_FOUND"]


@pytest.mark.spec("4.5", "3.6", "2.7")
async def test_a_result_that_was_not_recorded_comes_before_the_report(pair: Pair, logs: Logs) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    answer = pair.tools.hold("/t")
    calls = {"tool_calls": [{"name": "t", "arguments": {"a": 1}}]}
    run = await start(ada, session_id, config_json=scripted(calls, tools=[tool("t", pair.tools.url("/t"))]))
    await pair.tools.request()
    pair.link.hold()
    answer.open()
    await pair.link.withheld()  # FinishToolCall

    await cancel(ada, run.run_id)
    await logs.entry("turn stopped")
    pair.link.release()

    done = await ended(ada, run.run_id)
    assert (done.state, done.cancel.confirmed) == (CANCELLED, True)
    assert [call.state for call in done.tool_calls] == [SUCCEEDED]
    assert logs.answers()[-2:] == ["FinishToolCall", REPORT]
    assert texts(await messages(ada, session_id)) == ["Hello", "", "{}"]


@pytest.mark.spec("4.4", "4.5")
async def test_a_call_that_was_begun_and_never_left_is_not_made(pair: Pair) -> None:
    ada, gate = pair.client(), Gate()
    session_id = await new_session(ada)
    pair.model.queue(m.text("So"), m.hold(gate), m.tool_calls(m.Call("t")))
    run = await start(ada, session_id, config_json=openai_config(tool("t", pair.tools.url("/t"))))
    await gate.reached()
    await until(ada, run.run_id, "text_delta")
    pair.link.hold_answers()
    gate.open()
    await until(ada, run.run_id, "tool_call_started")  # recorded, but the runner does not know

    await cancel(ada, run.run_id)

    done = await ended(ada, run.run_id)
    pair.link.release()
    assert (done.state, done.cancel.confirmed) == (CANCELLED, True)
    assert [call.state for call in done.tool_calls] == [NOT_MADE]
    assert texts(await messages(ada, session_id)) == ["Hello", "So", "interrupted"]
    assert (len(pair.model.requests), len(pair.tools.requests)) == (1, 0)
    assert (await get(ada, run.run_id)) == done
