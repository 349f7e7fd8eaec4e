"""Claims and leases: one attempt at a time, and nothing is lost with a runner or a dispatcher."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from google.protobuf.duration_pb2 import Duration
from sqlalchemy import Connection, case, update
from turnkeeper.v1 import run_pb2

from session_service.dispatch.claims import candidates
from session_service.dispatch.model import Candidate, LeaseTerms
from session_service.dispatch.recovery import Sweeper
from session_service.storage.clock import Now, microseconds
from session_service.storage.schema import runs
from tests.fixtures.journeys import (
    cancel,
    ended,
    follow,
    get,
    messages,
    new_session,
    start,
    state_reached,
    states,
    text_of,
    texts,
)
from tests.fixtures.pair import Pair, StartPair

QUICK = {"lease_seconds": 1.5, "stop_grace_seconds": 0.3, "confirm_seconds": 2.0}


@pytest.mark.spec("3.2", "2.4")
async def test_runs_of_a_session_go_one_after_another_and_those_of_others_beside_them(pair: Pair) -> None:
    ada = pair.client()
    one, two = await new_session(ada), await new_session(ada)
    first = await start(ada, one, {"wait_gate": "first"})
    second = await start(ada, one, {"wait_gate": "second"})
    other = await start(ada, two, {"wait_gate": "other"})
    await pair.gates.reached("first")
    await pair.gates.reached("other")

    assert (await get(ada, second.run_id)).state == run_pb2.RUN_STATE_QUEUED
    assert pair.gates.arrivals("second") == 0
    pair.gates.open("first")
    await pair.gates.reached("second")
    assert (await get(ada, first.run_id)).state == run_pb2.RUN_STATE_COMPLETED
    pair.gates.open("second")
    pair.gates.open("other")
    assert [(await ended(ada, run.run_id)).attempt for run in (first, second, other)] == [1, 1, 1]


@pytest.mark.spec("3.2")
async def test_two_replicas_claim_each_run_once(start_pair: StartPair) -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(start_pair())
        await stack.enter_async_context(start_pair())
        ada = one.client()
        runs = [await start(ada, await new_session(ada), {"text": "x"}) for _ in range(30)]

        done = await asyncio.gather(*(ended(ada, run.run_id) for run in runs))

        assert {(run.state, run.attempt) for run in done} == {(run_pb2.RUN_STATE_COMPLETED, 1)}


@pytest.mark.spec("3.2", "3.3")
async def test_the_runner_down_at_the_start_and_back_later(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    await pair.stop_runner()
    run = await start(ada, session_id, {"text": "x"})
    behind = await start(ada, session_id, {"text": "y"})
    await state_reached(ada, run.run_id, run_pb2.RUN_STATE_RUNNING)
    await pair.start_runner()

    done = await ended(ada, run.run_id)

    assert (done.state, done.turn) == (run_pb2.RUN_STATE_COMPLETED, 1)
    assert done.attempt > 1  # each claim raises it
    assert (await ended(ada, behind.run_id)).state == run_pb2.RUN_STATE_COMPLETED
    assert texts(await messages(ada, session_id, behind.run_id)) == ["Hello", "x", "Hello", "y"]  # it kept its place


@pytest.mark.spec("3.7")
async def test_never_accepted_before_the_deadline_is_dispatch_failed(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    await pair.stop_runner()
    run = await start(ada, session_id, timeout=Duration(seconds=1))

    done = await ended(ada, run.run_id)

    assert (done.state, done.failure.reason) == (run_pb2.RUN_STATE_FAILED, run_pb2.FAILURE_REASON_DISPATCH_FAILED)
    await pair.start_runner()
    assert (await ended(ada, (await start(ada, session_id)).run_id)).state == run_pb2.RUN_STATE_COMPLETED


@pytest.mark.spec("3.3", "3.7")
async def test_a_lease_is_renewed_as_long_as_the_turn_goes_on(start_pair: StartPair) -> None:
    async with start_pair(session=QUICK) as pair:
        ada = pair.client()
        run = await start(ada, await new_session(ada), {"text": "a"}, {"wait_seconds": 4}, {"text": "b"})

        events = await follow(ada, run.run_id)

        assert states(events) == ["QUEUED", "RUNNING", "COMPLETED"]  # three leases long, and one attempt
        assert text_of(events) == "ab"


@pytest.mark.spec("3.3", "4.7")
async def test_a_runner_that_hears_nothing_stops_and_its_run_ends_once(start_pair: StartPair) -> None:
    """The session service is gone: no probe is answered, the runner stops by itself; then the sweeper decides."""
    async with start_pair(session=QUICK) as pair:
        ada = pair.client()
        session_id = await new_session(ada)
        run = await start(ada, session_id, {"text": "a"}, {"wait_gate": "hold"})
        await pair.gates.reached("hold")
        await state_reached(ada, run.run_id, run_pb2.RUN_STATE_RUNNING)
        pair.link.cut()
        await pair.stop_session()

        await pair.gates.disconnected("hold")
        await pair.start_session()

        done = await ended(ada, run.run_id)
        assert done.failure.reason == run_pb2.FAILURE_REASON_ATTEMPT_LOST
        assert (await get(ada, run.run_id)) == done
        pair.link.mend()
        assert (await ended(ada, (await start(ada, session_id)).run_id)).state == run_pb2.RUN_STATE_COMPLETED
        assert (await get(ada, run.run_id)) == done  # the late report changed nothing


@pytest.mark.spec("3.3")
async def test_before_begin_turn_a_dead_lease_is_claimable_again(start_pair: StartPair) -> None:
    async with start_pair(session=QUICK) as pair:
        ada = pair.client()
        pair.link.cut()  # BeginTurn cannot come through
        run = await start(ada, await new_session(ada), {"text": "x"})
        await state_reached(ada, run.run_id, run_pb2.RUN_STATE_RUNNING)
        pair.link.mend()

        done = await ended(ada, run.run_id)

        assert done.state == run_pb2.RUN_STATE_COMPLETED
        assert text_of(await follow(ada, run.run_id)) == "x"


@pytest.mark.spec("3.3")
async def test_sweeping_twice_is_harmless(pair: Pair) -> None:
    ada = pair.client()
    run = await start(ada, await new_session(ada), {"wait_gate": "hold"})
    done = await ended(ada, (await start(ada, await new_session(ada))).run_id)
    await pair.gates.reached("hold")
    live = await get(ada, run.run_id)
    terms = LeaseTerms(*(microseconds(seconds) for seconds in (2, 1, 4, 60)))
    sweeper = Sweeper(pair.session.storage, terms, interval=1, keep_keys=microseconds(60))

    await asyncio.gather(*(sweeper.sweep() for _ in range(5)))

    assert (await get(ada, run.run_id)) == live
    assert (await get(ada, done.run_id)) == done


@pytest.mark.spec("3.7")
async def test_a_turn_that_the_runner_refuses_as_invalid_fails_at_once(pair: Pair) -> None:
    """A config that this session service stored and this runner cannot read: versions that differ."""
    ada = pair.client()
    session_id = await new_session(ada)
    await start(ada, session_id, {"wait_gate": "hold"})
    await pair.gates.reached("hold")
    run = await start(ada, session_id)
    newer = update(runs).where(runs.c.run_id == run.run_id).values(config_json='{"schema_version": 99}')
    await pair.session.storage.write("acme", lambda connection: connection.execute(newer))
    pair.gates.open("hold")

    done = await ended(ada, run.run_id)

    assert (done.state, done.failure.reason) == (run_pb2.RUN_STATE_FAILED, run_pb2.FAILURE_REASON_HARNESS_ERROR)
    assert (await ended(ada, (await start(ada, session_id)).run_id)).state == run_pb2.RUN_STATE_COMPLETED


@pytest.mark.spec("3.8")
async def test_claims_go_round_the_tenants(pair: Pair) -> None:
    """A tenant that comes last with one run is among the first to be served, however many another has queued."""
    many, few = pair.client(), pair.client(tenant="small")
    await pair.stop_runner()
    storage = pair.session.storage
    for _ in range(10):
        await start(many, await new_session(many))
    await start(few, await new_session(few))

    def first_two(connection: Connection) -> list[Candidate]:
        """As the dispatcher would see them, which cannot claim in the same moment."""
        order = case((runs.c.tenant_id == "acme", Now() - 1), else_=Now())
        connection.execute(update(runs).values(state="QUEUED", available_time=order))
        found = candidates(connection, 2, ())
        connection.rollback()
        return found

    assert {each.key.tenant_id for each in await storage.read("", first_two)} == {"acme", "small"}


@pytest.mark.spec("4.7")
async def test_a_cancel_reaches_a_run_under_another_replica(start_pair: StartPair) -> None:
    async with start_pair(session=QUICK) as one:
        ada = one.client()
        run = await start(ada, await new_session(ada), {"wait_gate": "hold"})
        await one.gates.reached("hold")
        async with start_pair(session=QUICK) as other:  # no notification goes from one to the other
            answer = await cancel(other.client(), run.run_id)

            assert answer.run.state == run_pb2.RUN_STATE_CANCELLING
            await one.gates.disconnected("hold")
            done = await ended(other.client(), run.run_id)
            assert (done.state, done.cancel.confirmed) == (run_pb2.RUN_STATE_CANCELLED, True)
