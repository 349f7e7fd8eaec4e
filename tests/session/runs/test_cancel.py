"""Cancel: the intent first, then what is true."""

import asyncio

import pytest
from google.protobuf.duration_pb2 import Duration
from turnkeeper.v1 import run_pb2
from turnkeeper.v1.run_service_pb2 import (
    CANCEL_OUTCOME_ACCEPTED,
    CANCEL_OUTCOME_ALREADY_TERMINAL,
    CANCEL_OUTCOME_CANCELLED,
    WatchRunRequest,
)
from turnkeeper.v1.session_service_pb2 import DeleteSessionRequest, GetSessionRequest

from tests.far import model
from tests.far.gates import Gate
from tests.fixtures.client import Client
from tests.fixtures.journeys import (
    cancel,
    ended,
    follow,
    get,
    messages,
    new_session,
    refused,
    scripted,
    start,
    states,
    text_of,
    until,
)
from tests.fixtures.pair import Pair, StartPair

OPENAI = '{"schema_version":1,"harness":"openai","model":{"name":"m"}%s}'


@pytest.mark.spec("4.1")
async def test_closing_a_watch_or_losing_the_client_cancels_nothing(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    async with Client(pair.session_address, pair.runner_address, ada.token) as passing:
        run = await start(passing, session_id, {"text": "a"}, {"wait_gate": "hold"}, {"text": "b"})
        watch = passing.runs.WatchRun(WatchRunRequest(run_id=run.run_id))
        await anext(aiter(watch))
        await pair.gates.reached("hold")
        watch.cancel()

    assert (await get(ada, run.run_id)).state == run_pb2.RUN_STATE_RUNNING
    pair.gates.open("hold")
    events = await follow(ada, run.run_id)
    assert text_of(events) == "ab"
    assert states(events)[-1] == "COMPLETED"


@pytest.mark.spec("4.3", "3.1")
async def test_each_answer_says_what_is_true(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    live = await start(ada, session_id, {"wait_gate": "hold"})
    queued = await start(ada, session_id)
    await pair.gates.reached("hold")

    waiting = await cancel(ada, queued.run_id, "not needed")
    first = await cancel(ada, live.run_id, "changed my mind")
    repeat = await cancel(ada, live.run_id, "still")
    events = await follow(ada, live.run_id)
    late = await cancel(ada, live.run_id, "too late")

    assert waiting.outcome == CANCEL_OUTCOME_CANCELLED
    assert (waiting.run.state, waiting.run.cancel.confirmed) == (run_pb2.RUN_STATE_CANCELLED, True)
    assert states(await follow(ada, queued.run_id)) == ["QUEUED", "CANCELLED"]
    assert (first.outcome, first.run.state) == (CANCEL_OUTCOME_ACCEPTED, run_pb2.RUN_STATE_CANCELLING)
    assert repeat.outcome == CANCEL_OUTCOME_ACCEPTED or repeat.run.state == run_pb2.RUN_STATE_CANCELLED
    assert states(events) == ["QUEUED", "RUNNING", "CANCELLING", "CANCELLED"]
    assert (late.outcome, late.run.state) == (CANCEL_OUTCOME_ALREADY_TERMINAL, run_pb2.RUN_STATE_CANCELLED)
    assert (late.run.cancel.reason, late.run.cancel.requested_by) == ("changed my mind", "ada")  # the first is kept
    assert late.run.cancel.confirmed
    assert not late.run.HasField("failure")


@pytest.mark.spec("4.3")
async def test_a_cancel_of_one_run_never_touches_another(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    done = await ended(ada, (await start(ada, session_id)).run_id)
    live = await start(ada, session_id, {"wait_gate": "hold"})
    await pair.gates.reached("hold")

    answer = await cancel(ada, done.run_id)

    assert (answer.outcome, answer.run.state) == (CANCEL_OUTCOME_ALREADY_TERMINAL, run_pb2.RUN_STATE_COMPLETED)
    assert (await get(ada, live.run_id)).state == run_pb2.RUN_STATE_RUNNING
    with refused("RESOURCE_NOT_FOUND"):
        await cancel(pair.client(user="bob"), live.run_id)
    with refused("RESOURCE_NOT_FOUND"):
        await cancel(pair.client(tenant="rival"), live.run_id)


@pytest.mark.spec("4.4")
async def test_the_sockets_of_model_and_tool_close(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    gate = Gate()
    pair.model.queue(model.text("thinking "), model.hold(gate), model.text("never"))
    asking = await start(ada, session_id, config_json=OPENAI % "")
    await until(ada, asking.run_id, "text_delta")
    await gate.reached()

    await cancel(ada, asking.run_id)

    await pair.model.disconnected()
    assert states(await follow(ada, asking.run_id))[-1] == "CANCELLED"
    pair.tools.hold("/slow")
    tool = {"name": "slow", "http": {"method": "POST", "url": pair.tools.url("/slow")}}
    calls = scripted({"tool_calls": [{"name": "slow", "arguments": {}}]}, tools=[tool])
    calling = await start(ada, session_id, config_json=calls)
    await pair.tools.request()
    await cancel(ada, calling.run_id)
    await pair.tools.disconnected()
    run = await ended(ada, calling.run_id)
    assert (run.state, run.cancel.confirmed) == (run_pb2.RUN_STATE_CANCELLED, True)
    assert run_pb2.ToolCallState.Name(run.tool_calls[0].state) == "TOOL_CALL_STATE_UNKNOWN"
    assert [m.text for m in await messages(ada, session_id)][-1] == "interrupted"


@pytest.mark.spec("4.4", "3.7")
async def test_a_deadline_that_passes_stops_the_turn_just_the_same(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    gate = Gate()
    pair.model.queue(model.text("thinking "), model.hold(gate))

    run = await start(ada, session_id, config_json=OPENAI % "", timeout=Duration(seconds=1))
    await pair.model.disconnected()
    run = await ended(ada, run.run_id)

    assert run.state == run_pb2.RUN_STATE_FAILED
    assert run.failure.reason == run_pb2.FAILURE_REASON_DEADLINE_EXCEEDED
    await ended(ada, (await start(ada, session_id)).run_id)


@pytest.mark.spec("3.1", "4.5", "4.8", "4.9")
async def test_release_and_cancel_in_the_same_tick(pair: Pair) -> None:
    """Three hundred races: whichever committed first is what all say (one terminal event each)."""
    ada = pair.client()
    limit = asyncio.Semaphore(8)

    async def race(number: int) -> str:
        async with limit:
            session_id, gate = await new_session(ada), f"gate-{number}"
            run = await start(ada, session_id, {"text": "answer"}, {"wait_gate": gate})
            await pair.gates.reached(gate)
            pair.gates.open(gate)
            answer = await cancel(ada, run.run_id)
            events = await follow(ada, run.run_id)
            _, said = await messages(ada, session_id)
            run = await get(ada, run.run_id)
        final = states(events)[-1]
        assert states(events).count(final) == 1
        assert states([events[-1]]) == [final]
        if answer.outcome == CANCEL_OUTCOME_ALREADY_TERMINAL:
            assert (final, said.status) == ("COMPLETED", 1)
        else:
            assert (final, said.status, run.cancel.confirmed) == ("CANCELLED", 2, True)
        assert said.text == "answer"
        return final

    await asyncio.gather(*(race(number) for number in range(300)))


@pytest.mark.spec("4.6")
async def test_without_a_report_the_run_is_cancelled_unconfirmed(start_pair: StartPair) -> None:
    times = {"lease_seconds": 0.6, "stop_grace_seconds": 0.2, "confirm_seconds": 0.8}
    async with start_pair(session=times) as pair:
        ada = pair.client()
        session_id = await new_session(ada)
        run = await start(ada, session_id, {"text": "x"}, {"wait_gate": "hold"})
        await pair.gates.reached("hold")
        pair.link.cut()

        assert (await cancel(ada, run.run_id)).outcome == CANCEL_OUTCOME_ACCEPTED

        run = await ended(ada, run.run_id)
        assert (run.state, run.cancel.confirmed) == (run_pb2.RUN_STATE_CANCELLED, False)
        pair.link.mend()
        assert (await ended(ada, (await start(ada, session_id)).run_id)).state == run_pb2.RUN_STATE_COMPLETED


@pytest.mark.spec("9.5")
async def test_deleting_a_session_stops_its_live_run(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    run = await start(ada, session_id, {"text": "x"}, {"wait_gate": "hold"})
    queued = await start(ada, session_id)
    await pair.gates.reached("hold")
    watch = asyncio.create_task(follow(ada, run.run_id))
    await until(ada, run.run_id, "text_delta")

    await ada.sessions.DeleteSession(DeleteSessionRequest(session_id=session_id))

    with refused("RESOURCE_NOT_FOUND"):
        await ada.sessions.GetSession(GetSessionRequest(session_id=session_id))
    for gone in (run, queued):
        with refused("RESOURCE_NOT_FOUND"):
            await get(ada, gone.run_id)
    with refused("RESOURCE_NOT_FOUND"):
        await watch
    with refused("RESOURCE_NOT_FOUND"):
        await start(ada, session_id)
    await pair.gates.disconnected("hold")
