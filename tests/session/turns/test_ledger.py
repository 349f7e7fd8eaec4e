"""The runner's door: a run token is checked inside the transaction that it serves."""

import asyncio

import grpc
import pytest
from sqlalchemy import update
from turnkeeper.v1 import run_pb2
from turnkeeper.v1.run_event_pb2 import RunEvent, TextDelta
from turnkeeper.v1.run_service_pb2 import WatchRunRequest
from turnkeeper.v1.session_service_pb2 import DeleteSessionRequest, GetSessionRequest
from turnkeeper.v1.turn_event_pb2 import TurnCompleted, TurnEnded, TurnEvent
from turnkeeper.v1.turn_service_pb2 import (
    BeginToolCallRequest,
    BeginTurnRequest,
    FinishToolCallRequest,
    ReportTurnStoppedRequest,
    StoppedToolCall,
)

from session_service.runs.model import RunKey
from session_service.runs.store import lock
from session_service.storage.schema import runs
from tests.fixtures.client import Client
from tests.fixtures.journeys import (
    cancel,
    ended,
    follow,
    get,
    messages,
    new_session,
    refused,
    start,
    states,
    text_of,
    texts,
    until,
)
from tests.fixtures.pair import Pair


async def held_run(pair: Pair, gate: str = "hold") -> tuple[Client, run_pb2.Run]:
    """A run whose turn waits at a gate."""
    ada = pair.client()
    run = await start(ada, await new_session(ada), {"text": "a"}, {"wait_gate": gate}, {"text": "b"})
    await pair.gates.reached(gate)
    await until(ada, run.run_id, "text_delta")
    return ada, await get(ada, run.run_id)


def call(call_id: str = "1.1.0", name: str = "tool", **fields: object) -> BeginToolCallRequest:
    """A call that is about to be made."""
    return BeginToolCallRequest(call_id=call_id, tool_name=name, arguments_json="{}", side_effect=True, **fields)  # type: ignore[arg-type]


@pytest.mark.spec("3.4", "1.2")
async def test_begin_turn_numbers_turns_and_makes_the_session_live(pair: Pair) -> None:
    ada, run = await held_run(pair)
    runner = await pair.runner_of(run)

    session = (await ada.sessions.GetSession(GetSessionRequest(session_id=run.session_id))).session
    again = await runner.turns.BeginTurn(BeginTurnRequest(harness="scripted", runner_store="store-1"))

    assert session.lifecycle == 2
    assert again.turn_number == 1  # a run's own attempts do not count
    pair.gates.open("hold")
    await follow(ada, run.run_id)
    with refused("ATTEMPT_FENCED") as refusal:  # not RUNNING any more
        await runner.turns.BeginTurn(BeginTurnRequest(harness="scripted"))
    assert refusal.code is grpc.StatusCode.ABORTED
    second = await start(ada, run.session_id, {"wait_gate": "second"})
    await pair.gates.reached("second")
    number = await (await pair.runner_of(second)).turns.BeginTurn(BeginTurnRequest(harness="scripted"))
    assert number.turn_number == 2


@pytest.mark.spec("3.2", "3.4", "1.2")
async def test_another_attempt_is_fenced_and_touches_nothing(pair: Pair) -> None:
    ada, run = await held_run(pair)
    stranger = await pair.runner_of(run, attempt=2)

    with refused("ATTEMPT_FENCED"):
        await stranger.turns.BeginTurn(BeginTurnRequest(harness="scripted"))
    with refused("ATTEMPT_FENCED"):
        await stranger.turns.BeginToolCall(call("2.1.0"))
    done = TurnEnded(completed=TurnCompleted())
    report = ReportTurnStoppedRequest(events=[TurnEvent(number=9, turn_ended=done)])
    await stranger.turns.ReportTurnStopped(report)

    assert (await get(ada, run.run_id)) == run
    pair.gates.open("hold")
    assert text_of(await follow(ada, run.run_id)) == "ab"


@pytest.mark.spec("3.6")
async def test_a_call_is_recorded_before_and_after_and_its_result_is_used_again(pair: Pair) -> None:
    ada, run = await held_run(pair)
    runner = await pair.runner_of(run)

    first = await runner.turns.BeginToolCall(call())
    again = await runner.turns.BeginToolCall(call())
    with refused("TOOL_CALL_CONFLICT"):
        await runner.turns.BeginToolCall(call(name="other"))
    with refused("INVALID_FIELD"):
        await runner.turns.BeginToolCall(call("2.1.0"))
    with refused("INVALID_FIELD"):
        await runner.turns.BeginToolCall(call("1.1.1", after_event=1_000))
    done = run_pb2.TOOL_CALL_STATE_SUCCEEDED
    await runner.turns.FinishToolCall(FinishToolCallRequest(call_id="1.1.0", state=done, result="42"))
    await runner.turns.FinishToolCall(FinishToolCallRequest(call_id="1.1.0", state=done, result="43"))
    recorded = await runner.turns.BeginToolCall(call())

    assert first.idempotency_key == again.idempotency_key != ""
    assert not first.HasField("recorded_result")
    assert (recorded.recorded_result.state, recorded.recorded_result.result) == (done, "42")
    kinds = [e.WhichOneof("body") for e in await _so_far(ada, run.run_id)]
    assert (kinds.count("tool_call_started"), kinds.count("tool_call_finished")) == (1, 1)


@pytest.mark.spec("1.2", "3.6", "4.5", "2.7")
async def test_a_late_result_completes_the_record_and_changes_nothing_else(pair: Pair) -> None:
    ada, run = await held_run(pair)
    runner = await pair.runner_of(run)
    await runner.turns.BeginToolCall(call())
    await cancel(ada, run.run_id)
    after = await ended(ada, run.run_id)

    with refused("ATTEMPT_FENCED"):
        await runner.turns.BeginToolCall(call("1.1.1"))
    result = FinishToolCallRequest(call_id="1.1.0", state=run_pb2.TOOL_CALL_STATE_SUCCEEDED, result="late")
    await runner.turns.FinishToolCall(result)

    now = await get(ada, run.run_id)
    assert now.last_sequence == after.last_sequence
    assert (after.tool_calls[0].state, now.tool_calls[0].state) == (
        run_pb2.TOOL_CALL_STATE_UNKNOWN,
        run_pb2.TOOL_CALL_STATE_SUCCEEDED,
    )
    assert texts(await messages(ada, run.session_id)) == ["Hello", "a", "interrupted"]


@pytest.mark.spec("4.5")
async def test_a_report_with_an_end_ends_a_running_run_with_the_events_that_are_not_stored(pair: Pair) -> None:
    ada, run = await held_run(pair)
    runner = await pair.runner_of(run)
    stored = TurnEvent(number=1, text_delta=TextDelta(text="a", step=1))
    more = TurnEvent(number=2, text_delta=TextDelta(text="b", step=1))
    end = TurnEvent(number=3, turn_ended=TurnEnded(completed=TurnCompleted()))
    report = ReportTurnStoppedRequest(events=[stored, more, end])

    await runner.turns.ReportTurnStopped(report)
    await runner.turns.ReportTurnStopped(report)

    events = await follow(ada, run.run_id)
    assert states(events) == ["QUEUED", "RUNNING", "COMPLETED"]
    assert text_of(events) == "ab"
    await pair.gates.disconnected("hold")  # the attempt was stopped: it has nothing to renew


@pytest.mark.spec("4.5", "3.5")
async def test_a_report_without_an_end_is_a_lost_attempt_and_says_what_is_known(pair: Pair) -> None:
    ada, run = await held_run(pair)
    runner = await pair.runner_of(run)
    for call_id in ("1.1.0", "1.1.1", "1.1.2"):
        await runner.turns.BeginToolCall(call(call_id))
    result = FinishToolCallRequest(call_id="1.1.0", state=run_pb2.TOOL_CALL_STATE_SUCCEEDED, result="done")
    await runner.turns.FinishToolCall(result)
    never = StoppedToolCall(call_id="1.1.1", state=run_pb2.TOOL_CALL_STATE_NOT_MADE)

    await runner.turns.ReportTurnStopped(ReportTurnStoppedRequest(stopped_tool_calls=[never]))

    lost = await ended(ada, run.run_id)
    assert lost.failure.reason == run_pb2.FAILURE_REASON_ATTEMPT_LOST
    assert "finished: tool (1.1.0)" in lost.failure.message
    assert "not made: tool (1.1.1)" in lost.failure.message
    assert "unknown: tool (1.1.2)" in lost.failure.message
    assert texts(await messages(ada, run.session_id)) == ["Hello", "a", "done", "interrupted", "interrupted"]


@pytest.mark.spec("4.5")
async def test_confirmed_may_still_become_true_and_nothing_else(pair: Pair) -> None:
    ada, run = await held_run(pair)
    runner = await pair.runner_of(run)
    await cancel(ada, run.run_id)
    before = await ended(ada, run.run_id)

    await pair.session.storage.write(
        "acme",
        lambda c: c.execute(update(runs).where(runs.c.run_id == run.run_id).values(cancel_confirmed=False)) and None,
    )

    end = TurnEvent(number=50, turn_ended=TurnEnded(completed=TurnCompleted()))
    await runner.turns.ReportTurnStopped(ReportTurnStoppedRequest(events=[end]))

    assert (await get(ada, run.run_id)) == before


@pytest.mark.spec("9.5", "4.5")
async def test_after_deletion_late_writes_touch_nothing_and_reports_end(pair: Pair) -> None:
    ada, run = await held_run(pair)
    runner = await pair.runner_of(run)
    result = FinishToolCallRequest(call_id="1.1.0", state=run_pb2.TOOL_CALL_STATE_SUCCEEDED, result="x")
    key = RunKey("acme", run.run_id)

    await ada.sessions.DeleteSession(DeleteSessionRequest(session_id=run.session_id))
    with refused("RESOURCE_NOT_FOUND"):
        await runner.turns.BeginToolCall(call())
    await pair.gates.disconnected("hold")
    async with asyncio.timeout(10):
        while await pair.session.storage.read("acme", lambda connection: lock(connection, key)):
            pass  # each look is a database read; the sweeper works in between
    with refused("RESOURCE_NOT_FOUND"):
        await runner.turns.ReportTurnStopped(ReportTurnStoppedRequest())
    with refused("RESOURCE_NOT_FOUND"):
        await runner.turns.FinishToolCall(result)


@pytest.mark.spec("1.2", "3.4")
async def test_the_door_takes_no_other_token(pair: Pair) -> None:
    ada, _ = await held_run(pair)
    for attempt in (
        ada.turns.BeginToolCall(call()),
        ada.turns.FinishToolCall(FinishToolCallRequest(call_id="1.1.0", state=run_pb2.TOOL_CALL_STATE_SUCCEEDED)),
        ada.turns.ReportTurnStopped(ReportTurnStoppedRequest()),
    ):
        with refused("TOKEN_KIND_REFUSED"):
            await attempt


async def _so_far(ada: Client, run_id: str) -> list[RunEvent]:

    run = await get(ada, run_id)
    watch = ada.runs.WatchRun(WatchRunRequest(run_id=run_id))
    found: list[RunEvent] = []
    async for response in watch:
        found.append(response.event)
        if response.event.sequence == run.last_sequence:
            watch.cancel()
            break
    return found
