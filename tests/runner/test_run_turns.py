"""A run's turn in its runner, between the real session service and a model: order, prompt, ledger."""

import grpc
import pytest
from sqlalchemy import select
from turnkeeper.v1 import run_pb2
from turnkeeper.v1.runner_service_pb2 import ExecuteTurnRequest, Lease, TurnStart
from turnkeeper.v1.session_pb2 import MESSAGE_ROLE_USER
from turnkeeper.v1.session_service_pb2 import AppendMessageRequest, DeleteSessionRequest
from turnkeeper.v1.turn_service_pb2 import BeginToolCallRequest, FinishToolCallRequest
from turnkeeper.wire import errors

from session_service.storage.schema import tool_calls, turns
from tests.far import model as m
from tests.far.gates import Gate
from tests.far.tools import text_reply
from tests.far.turn_link import CANCELLATION, EVENTS
from tests.fixtures.journeys import (
    cancel,
    ended,
    follow,
    get,
    messages,
    new_session,
    reference,
    scripted,
    start,
    text_of,
    texts,
    until,
)
from tests.fixtures.pair import Pair, StartPair
from tests.runner.conftest import Logs, bodies, duration, openai_config, tool

COMPLETED = run_pb2.RUN_STATE_COMPLETED
CANCELLED = run_pb2.RUN_STATE_CANCELLED
SUCCEEDED = run_pb2.TOOL_CALL_STATE_SUCCEEDED
FAILED = run_pb2.TOOL_CALL_STATE_FAILED
STARTED = run_pb2.TOOL_CALL_STATE_STARTED


async def test_a_history_that_is_too_long_for_a_prompt_fails_before_the_model_is_asked(start_pair: StartPair) -> None:
    async with start_pair(runner={"max_prompt_bytes": 4096}) as pair:
        ada = pair.client()
        session_id = await new_session(ada)
        pair.model.respond = lambda _: m.text("Hi")
        fits = await ended(ada, (await start(ada, session_id, config_json=openai_config(), input="x" * 2000)).run_id)
        over = await ended(ada, (await start(ada, session_id, config_json=openai_config(), input="x" * 2000)).run_id)

        assert fits.state == COMPLETED
        assert (over.state, over.failure.reason) == (run_pb2.RUN_STATE_FAILED, run_pb2.FAILURE_REASON_HARNESS_ERROR)
        assert "start a new session, or raise max_prompt_bytes" in over.failure.message
        assert len(pair.model.requests) == 1


@pytest.mark.spec("3.4")
async def test_the_turn_begins_before_its_prompt_is_made(start_pair: StartPair, logs: Logs) -> None:
    async with start_pair(runner={"store_id": "store-1"}) as pair:
        ada = pair.client()
        session_id = await new_session(ada)
        earlier = [f"m{number}" for number in range(201)]  # more than one page
        for text in earlier:
            request = AppendMessageRequest(session_id=session_id, role=MESSAGE_ROLE_USER, text=text)
            await ada.sessions.AppendMessage(request)
        pair.model.queue(m.text("Hi"))

        run = await ended(ada, (await start(ada, session_id, config_json=openai_config(), input="now")).run_id)

        assert run.state == COMPLETED
        assert logs.answers() == ["BeginTurn", "ResolveTurnContext", "ListMessages", "ListMessages"]
        assert (await pair.model.prompt()).texts("user") == [*earlier, "now"]
        [begun] = await pair.session.storage.read("acme", lambda connection: connection.execute(select(turns)).all())
        assert (begun.run_id, begun.harness, begun.runner_store) == (run.run_id, "openai", "store-1")


@pytest.mark.spec("3.4", "4.5")
@pytest.mark.parametrize("deleted", [False, True], ids=["cancelled", "deleted"])
async def test_a_refused_beginning_makes_no_prompt(linked: Pair, logs: Logs, deleted: bool) -> None:
    ada = linked.client()
    session_id = await new_session(ada)
    await ended(ada, (await start(ada, session_id)).run_id)  # from now on the runner knows the keys
    linked.link.hold()
    linked.turn_link.hold(CANCELLATION)  # only the refusal says that the turn is over
    run = await start(ada, session_id, config_json=openai_config())
    turn = await linked.turn_link.turns.at(2)
    await linked.link.withheld()

    if deleted:
        await ada.sessions.DeleteSession(DeleteSessionRequest(session_id=session_id))
    else:
        await cancel(ada, run.run_id)
    linked.link.release()

    assert await turn.status() is grpc.StatusCode.ABORTED
    assert len(turn.events) == 0
    if not deleted:
        assert (await ended(ada, run.run_id)).cancel.confirmed
    assert ("BeginTurn RESOURCE_NOT_FOUND" if deleted else "BeginTurn ATTEMPT_FENCED") in logs.answers()
    assert len(linked.model.requests) == 0


async def test_a_session_service_that_is_away_for_a_moment_is_waited_for(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    await ended(ada, (await start(ada, session_id)).run_id)
    pair.link.cut()
    run = await start(ada, session_id, {"text": "x"})
    await pair.link.refused(6)  # for longer than the channel's own retries of one call

    pair.link.mend()

    done = await ended(ada, run.run_id)
    assert (done.state, done.attempt) == (COMPLETED, 1)


@pytest.mark.spec("3.6", "5.2")
async def test_a_call_is_recorded_before_and_after_it_is_made(pair: Pair) -> None:
    ada = pair.client()
    held = pair.tools.hold("/w")
    config = openai_config(tool("w", pair.tools.url("/w")), tool("r", pair.tools.url("/r"), effect="READ"))
    calls = m.tool_calls(m.Call("w", {"a": 1}, "model-id"), m.Call("r"), m.Call("no such!"))
    pair.model.queue(m.text("Wait. "), calls)
    pair.model.queue(m.text("Done."))
    run = await start(ada, await new_session(ada), config_json=config)
    await pair.tools.request(2)

    under_way = {call.call_id: call for call in (await get(ada, run.run_id)).tool_calls}
    held.open()
    done = await ended(ada, run.run_id)

    assert under_way["1.1.0"].state == STARTED
    assert [(call.call_id, call.tool_name, call.side_effect, call.state) for call in done.tool_calls] == [
        ("1.1.0", "w", True, SUCCEEDED),
        ("1.1.1", "r", False, SUCCEEDED),
        ("1.1.2", "no_such_", False, FAILED),
    ]
    events = await follow(ada, run.run_id)
    kinds = [event.WhichOneof("body") for event in events]
    assert kinds.index("text_delta") < kinds.index("tool_call_started")
    rows = await pair.session.storage.read(
        "acme", lambda connection: connection.execute(select(tool_calls).order_by(tool_calls.c.call_index)).all()
    )
    assert (rows[0].arguments_json, rows[0].model_call_id) == ('{"a": 1}', "model-id")
    assert pair.tools.of("/w")[0].headers["idempotency-key"] == rows[0].idempotency_key
    assert "idempotency-key" not in pair.tools.of("/r")[0].headers


@pytest.mark.spec("5.2")
@pytest.mark.parametrize("lane", [EVENTS, "stored"])
async def test_no_call_begins_before_its_text_is_stored(linked: Pair, logs: Logs, lane: str) -> None:
    ada = linked.client()
    calls = {"tool_calls": [{"name": "t", "arguments": {}}]}
    config = scripted({"text": "first"}, calls, tools=[tool("t", linked.tools.url("/t"))])
    linked.turn_link.hold(lane)
    run = await start(ada, await new_session(ada), config_json=config)
    turn = await linked.turn_link.turns.at()
    await turn.event("message_completed")

    await turn.beats()
    assert "BeginToolCall" not in logs.answers()
    linked.turn_link.release(lane)

    assert (await ended(ada, run.run_id)).state == COMPLETED
    kinds = [event.WhichOneof("body") for event in await follow(ada, run.run_id)]
    assert kinds.index("text_delta") < kinds.index("tool_call_started")
    assert len(linked.tools.requests) == 1


@pytest.mark.spec("3.6")
async def test_a_recorded_result_is_used_and_the_call_not_made(pair: Pair) -> None:
    ada, gate = pair.client(), Gate()
    pair.model.queue(m.hold(gate), m.tool_calls(m.Call("t")))
    pair.model.queue(m.text("Done."))
    run = await start(ada, await new_session(ada), config_json=openai_config(tool("t", pair.tools.url("/t"))))
    await gate.reached()
    runner = await pair.runner_of(await get(ada, run.run_id))
    begin = BeginToolCallRequest(call_id="1.1.0", tool_name="t", arguments_json="{}", side_effect=True)
    await runner.turns.BeginToolCall(begin)
    await runner.turns.FinishToolCall(FinishToolCallRequest(call_id="1.1.0", state=SUCCEEDED, result="as before"))

    gate.open()

    assert (await ended(ada, run.run_id)).state == COMPLETED
    assert (await pair.model.prompt(2)).texts("tool") == ["as before"]
    assert len(pair.tools.requests) == 0


@pytest.mark.spec("3.2", "4.5")
async def test_a_fenced_call_stops_the_turn_whatever_the_harness_makes_of_it(linked: Pair, logs: Logs) -> None:
    ada, gate = linked.client(), Gate()
    linked.model.queue(m.hold(gate), m.tool_calls(m.Call("t")))
    config = openai_config(tool("t", linked.tools.url("/t")))
    linked.turn_link.hold(CANCELLATION)
    run = await start(ada, await new_session(ada), config_json=config)
    turn = await linked.turn_link.turns.at()
    await gate.reached()
    linked.link.hold()
    gate.open()
    await linked.link.withheld()  # BeginToolCall
    await cancel(ada, run.run_id)

    linked.link.release()

    assert await turn.status() is grpc.StatusCode.ABORTED
    done = await ended(ada, run.run_id)
    assert (done.state, done.cancel.confirmed) == (CANCELLED, True)
    assert bodies(turn.events) == ["message_completed"]
    assert "BeginToolCall ATTEMPT_FENCED" in logs.answers()
    assert (len(linked.model.requests), len(linked.tools.requests)) == (1, 0)


@pytest.mark.spec("2.7", "3.6")
async def test_the_next_prompt_has_every_call_with_its_result(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    config = openai_config(tool("a", pair.tools.url("/a")), tool("b", pair.tools.url("/b")))
    pair.tools.queue("/b", text_reply(""), text_reply("b of the second run"))
    for words in ("One.", "Two."):
        pair.model.queue(m.tool_calls(m.Call("a", {"run": words}), m.Call("b")))
        pair.model.queue(m.text(words))
        await ended(ada, (await start(ada, session_id, config_json=config)).run_id)
    pair.model.queue(m.text("Three."))

    done = await ended(ada, (await start(ada, session_id, config_json=config)).run_id)

    assert done.state == COMPLETED
    prompt = await pair.model.prompt(5)  # the far side refuses one whose calls and results do not match
    assert prompt.texts("tool") == ['{"run":"One."}', "", '{"run":"Two."}', "b of the second run"]
    keys = [call["id"] for message in prompt.messages for call in message.get("tool_calls", [])]
    assert len(set(keys)) == 4


@pytest.mark.spec("3.7")
@pytest.mark.parametrize(
    ("run_seconds", "turn_seconds", "at_most"), [(20, 600.0, 20.0), (600, 9.0, 12.0)], ids=["the run's", "the turn's"]
)
async def test_the_calls_deadline_is_what_ends_first(
    start_pair: StartPair, run_seconds: int, turn_seconds: float, at_most: float
) -> None:
    async with start_pair(session={"hold_seconds": 3.0}, turn_link=True) as pair:
        ada = pair.client()
        config = scripted({"text": "x"}, limits={"turn_seconds": turn_seconds})
        given = {"config_json": config, "timeout": duration(run_seconds)}

        run = await ended(ada, (await start(ada, await new_session(ada), **given)).run_id)

        assert run.state == COMPLETED
        turn = await pair.turn_link.turns.at()
        assert turn.time_remaining is not None
        assert at_most - 8.0 < turn.time_remaining <= at_most


@pytest.mark.spec("3.7", "2.7", "3.5")
async def test_a_turn_that_takes_too_long_is_stopped_and_then_ends(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    pair.tools.hold("/slow")
    calls = {"tool_calls": [{"name": "slow", "arguments": {}}]}
    limits = {"turn_seconds": 0.3}
    config = scripted({"text": "x"}, calls, tools=[tool("slow", pair.tools.url("/slow"))], limits=limits)

    run = await start(ada, session_id, config_json=config)

    await pair.tools.disconnected()
    done = await ended(ada, run.run_id)
    assert (done.state, done.failure.reason) == (run_pb2.RUN_STATE_FAILED, run_pb2.FAILURE_REASON_TURN_TIMEOUT)
    assert [call.state for call in done.tool_calls] == [run_pb2.TOOL_CALL_STATE_UNKNOWN]
    *said, told = texts(await messages(ada, session_id))
    assert said == ["Hello", "x"]
    # The call's time is what was left of the turn's: either of the two may be first.
    assert told == "interrupted" or told.startswith("The tool did not answer within")


async def test_a_peer_that_is_behind_makes_the_harness_wait(linked: Pair) -> None:
    ada, whole = linked.client(), "x" * 10_000 * 160
    linked.model.queue(m.text(*(["x" * 10_000] * 160)))
    linked.turn_link.hold("stored")
    run = await start(ada, await new_session(ada), config_json=openai_config())
    turn = await linked.turn_link.turns.at()
    while sum(event.ByteSize() for event in turn.events) < 2**20:
        await turn.events.at(len(turn.events) + 1)

    await turn.beats()
    assert sum(event.ByteSize() for event in turn.events) < 2**20 + 2 * 16_384
    linked.turn_link.release("stored")

    assert text_of(await follow(ada, run.run_id)) == whole


@pytest.mark.spec("6.4")
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        # A reference that is right in itself, else the edge refuses it before the rule is asked.
        (TurnStart(references=[reference("0199e0d0-0000-7000-8000-0000000000aa")]), "start.references"),
        (TurnStart(session_id="0199e0d0-0000-7000-8000-0000000000aa"), "start.session_id"),
        (TurnStart(), "start.lease"),
    ],
    ids=["references", "session", "no lease"],
)
async def test_what_a_runs_start_may_not_say(pair: Pair, wrong: TurnStart, field: str) -> None:
    ada = pair.client()
    run = await start(ada, await new_session(ada), {"text": "a"}, {"wait_gate": "hold"})
    await until(ada, run.run_id, "text_delta")
    await pair.gates.reached("hold")
    request = TurnStart(config_json=scripted({"text": "never"}))
    if wrong != TurnStart():
        request.lease.CopyFrom(Lease(duration=duration(1), probe_interval=duration(1)))
    request.MergeFrom(wrong)
    stream = (await pair.runner_of(await get(ada, run.run_id))).runner.ExecuteTurn()
    await stream.write(ExecuteTurnRequest(start=request))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(stream))

    assert errors.reason(caught.value) == "INVALID_FIELD"
    assert [violation.field for violation in errors.ErrorDetail.of(caught.value).fields] == [field]
    pair.gates.open("hold")
    assert (await ended(ada, run.run_id)).state == COMPLETED
