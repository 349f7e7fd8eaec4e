"""gRPC tools through the real pair: bound bodies, nested limits, cancellation down to the foreign server."""

from collections.abc import AsyncIterator

import pytest
from turnkeeper.v1 import run_pb2

from tests.e2e.tools.turns import calling, played, results
from tests.far.grpc_tools import CHARGE, GrpcToolServer
from tests.fixtures.journeys import cancel, ended, get, new_session, scripted, start
from tests.fixtures.pair import Pair, StartPair


@pytest.fixture
async def far() -> AsyncIterator[GrpcToolServer]:
    async with GrpcToolServer("v1alpha") as server:
        yield server


@pytest.fixture
async def billed(start_pair: StartPair, far: GrpcToolServer) -> AsyncIterator[Pair]:
    """A pair whose tools may call the foreign server."""
    async with start_pair(runner={"grpc_targets": [far.target]}) as pair:
        yield pair


def charge(far: GrpcToolServer, *then: dict[str, str], **limits: float) -> str:
    """A config that charges, and binds whose session it is for."""
    tool = {
        "name": "charge",
        "grpc": {"target": far.target, "method": CHARGE},
        "bindings": {"accountId": "$ctx.session.id", "payer.userId": "$ctx.user.id"},
    }
    step = calling("charge", amount=5, accountId="evil", payer={"userId": "evil"})
    return scripted(step, *then, tools=[tool], limits=limits)


@pytest.mark.spec("7.10", "7.4", "3.6")
async def test_the_message_has_the_servers_values_and_the_calls_own_key(billed: Pair, far: GrpcToolServer) -> None:
    ada = billed.client()
    session_id = await new_session(ada)
    run, events = await played(ada, session_id, config_json=charge(far))
    seen = await far.call()
    assert seen.request == {"accountId": session_id, "amount": "5", "payer": {"userId": "ada"}}
    assert len(seen.metadata["idempotency-key"]) == 36
    assert "authorization" not in seen.metadata
    assert results(events) == [("SUCCEEDED", '{"chargeId": "c-1", "amount": "5"}')]
    assert (await get(ada, run.run_id)).state == run_pb2.RUN_STATE_COMPLETED


@pytest.mark.spec("7.4", "1.6")
async def test_another_spelling_of_a_bound_field_calls_nothing(billed: Pair, far: GrpcToolServer) -> None:
    ada = billed.client()
    tool = {
        "name": "charge",
        "grpc": {"target": far.target, "method": CHARGE},
        "bindings": {"accountId": "$ctx.session.id", "payer.userId": "$ctx.user.id"},
    }
    steps = [calling("charge", account_id="evil"), calling("charge", payer={"user_id": "evil"})]
    _, events = await played(ada, await new_session(ada), config_json=scripted(*steps, tools=[tool]))
    assert [state for state, _ in results(events)] == ["FAILED", "FAILED"]
    assert len(far.calls) == 0


@pytest.mark.spec("7.10", "3.7")
async def test_a_calls_deadline_lies_within_its_turns(billed: Pair, far: GrpcToolServer) -> None:
    ada = billed.client()
    far.hold()
    run = await start(ada, await new_session(ada), config_json=charge(far, {"wait_gate": "never"}, turn_seconds=2))
    seen = await far.call()
    assert seen.time_left is not None
    assert seen.time_left <= 2
    await far.cancellations.at()
    assert (await ended(ada, run.run_id)).failure.reason == run_pb2.FAILURE_REASON_TURN_TIMEOUT


@pytest.mark.spec("7.10", "4.4", "4.9")
async def test_cancelling_the_run_cancels_the_call(billed: Pair, far: GrpcToolServer) -> None:
    ada = billed.client()
    far.hold()
    run = await start(ada, await new_session(ada), config_json=charge(far))
    await far.call()
    await cancel(ada, run.run_id)
    await far.cancellations.at()
    after = await ended(ada, run.run_id)
    assert after.state == run_pb2.RUN_STATE_CANCELLED
    assert [call.state for call in after.tool_calls] == [run_pb2.TOOL_CALL_STATE_UNKNOWN]
