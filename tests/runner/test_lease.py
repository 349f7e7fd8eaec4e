"""The lease over the call: nothing before it is known, nothing after it is over (SPEC 3.3, 4.6)."""

import grpc
import pytest
from turnkeeper.v1 import run_pb2

from tests.far import model as m
from tests.far.gates import Gate
from tests.far.turn_link import CANCELLATION
from tests.fixtures.journeys import cancel, ended, follow, messages, new_session, start, text_of, texts, until
from tests.fixtures.pair import Pair
from tests.runner.conftest import Logs, openai_config

RENEWALS = "lease_renewed"
LOST = (run_pb2.RUN_STATE_FAILED, run_pb2.FAILURE_REASON_ATTEMPT_LOST)


@pytest.mark.spec("3.3", "3.5")
async def test_nothing_is_asked_of_a_model_before_the_lease_is_known(linked: Pair, logs: Logs) -> None:
    ada = linked.client()
    linked.turn_link.hold(RENEWALS)

    run = await start(ada, await new_session(ada), config_json=openai_config())

    turn = await linked.turn_link.turns.at()
    assert await turn.status() is grpc.StatusCode.ABORTED
    done = await ended(ada, run.run_id)
    assert (done.state, done.failure.reason) == LOST
    assert logs.answers() == ["BeginTurn", "ResolveTurnContext", "ListMessages", "ReportTurnStopped"]
    assert len(linked.model.requests) == 0


@pytest.mark.spec("3.3")
async def test_an_answer_that_comes_late_but_in_time_is_enough(linked: Pair) -> None:
    ada = linked.client()
    linked.model.queue(m.text("In time."))
    linked.turn_link.hold(RENEWALS)
    run = await start(ada, await new_session(ada), config_json=openai_config())
    turn = await linked.turn_link.turns.at()
    await turn.requests[RENEWALS].at()
    await turn.probes.at(2)
    assert len(linked.model.requests) == 0

    linked.turn_link.release(RENEWALS)

    assert (await ended(ada, run.run_id)).state == run_pb2.RUN_STATE_COMPLETED
    assert text_of(await follow(ada, run.run_id)) == "In time."


@pytest.mark.spec("3.3", "3.5")
async def test_the_turn_stops_by_itself_when_its_lease_is_over(linked: Pair) -> None:
    ada = linked.client()
    session_id = await new_session(ada)
    linked.model.queue(m.text("Once"), m.hold(Gate()))
    run = await start(ada, session_id, config_json=openai_config())
    await until(ada, run.run_id, "text_delta")

    linked.turn_link.hold(RENEWALS)

    await linked.model.disconnected()
    turn = await linked.turn_link.turns.at()
    assert await turn.status() is grpc.StatusCode.ABORTED
    done = await ended(ada, run.run_id)
    assert (done.state, done.failure.reason) == LOST
    assert texts(await messages(ada, session_id)) == ["Hello", "Once"]


@pytest.mark.spec("4.6", "4.7", "3.3")
async def test_a_cancelled_turn_that_never_hears_of_it_gets_no_renewal_and_stops(linked: Pair) -> None:
    ada = linked.client()
    linked.model.queue(m.text("Once"), m.hold(Gate()))
    linked.turn_link.hold(CANCELLATION)
    run = await start(ada, await new_session(ada), config_json=openai_config())
    await until(ada, run.run_id, "text_delta")
    turn = await linked.turn_link.turns.at()

    await cancel(ada, run.run_id)

    await turn.cancellations.at()
    renewals = len(turn.requests[RENEWALS])
    await linked.model.disconnected()
    assert await turn.status() is grpc.StatusCode.ABORTED
    assert len(turn.requests[RENEWALS]) == renewals
    done = await ended(ada, run.run_id)
    assert (done.state, done.cancel.confirmed) == (run_pb2.RUN_STATE_CANCELLED, True)
