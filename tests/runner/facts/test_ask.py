"""Asking for facts: one budget, whatever the read does; an outcome for every turn (SPEC 6.5, 6.6)."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable

import grpc
import pytest
from prometheus_client import CollectorRegistry
from turnkeeper.v1 import turn_service_pb2 as turns
from turnkeeper.v1.facts_pb2 import Facts, NameFact, RunContext, TenantIdentity
from turnkeeper.wire.budgets import Detached

from runner_service.facts.ask import FactsDesk, TurnFacts
from runner_service.facts.metrics import FactsMetrics, FactsOutcome

Response = turns.ResolveTurnContextResponse
NOTHING = TurnFacts()
ATLAS = Response(
    facts=Facts(agent_name=NameFact(known="Atlas")),
    run_context=RunContext(tenant=TenantIdentity(id="acme")),
    outcome=turns.RESOLVE_OUTCOME_OK,
)


class Desk:
    """A desk with what can be seen of it from outside."""

    def __init__(self, budget: float = 60.0, cap: int = 3) -> None:
        self._registry = CollectorRegistry()
        self.detached = Detached(cap)
        self.desk = FactsDesk(budget, self.detached, FactsMetrics(self._registry))
        self.ask = self.desk.ask

    def counted(self) -> dict[str, int]:
        """How often each outcome was counted, without those that never were."""
        counts = {
            outcome: int(self._registry.get_sample_value("turnkeeper_facts_total", {"outcome": outcome}) or 0)
            for outcome in FactsOutcome
        }
        measured = self._registry.get_sample_value("turnkeeper_facts_duration_seconds_count")
        assert measured == sum(counts.values())
        return {outcome: count for outcome, count in counts.items() if count}


class HangingClose:
    """A read that hangs, and then hangs in its own clean-up until it is let go."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.closing = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, seconds: float) -> Response:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.closing.set()
            await self.let_go.wait()
        return ATLAS


@pytest.fixture
async def hanging() -> AsyncIterator[list[HangingClose]]:
    """Reads whose close hangs, let go at the end, after which nothing may be left."""
    made: list[HangingClose] = [HangingClose() for _ in range(4)]
    yield made
    for each in made:
        each.let_go.set()


async def emptied(detached: Detached) -> None:
    """Nothing detached is left after the few turns of the loop that ending tasks need."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(detached) == 0


async def answered(seconds: float) -> Response:
    return ATLAS


@pytest.mark.spec("6.5")
async def test_the_answer_is_passed_on() -> None:
    desk = Desk()
    found = await desk.ask(answered)
    assert (found.facts, found.run_context) == (ATLAS.facts, ATLAS.run_context)
    assert desk.counted() == {"ok": 1}


@pytest.mark.spec("6.6")
@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (turns.RESOLVE_OUTCOME_OK, "ok"),
        (turns.RESOLVE_OUTCOME_PARTIAL, "partial"),
        (turns.RESOLVE_OUTCOME_AMBIGUOUS, "partial"),
        (turns.RESOLVE_OUTCOME_DENIED, "denied"),
        (turns.RESOLVE_OUTCOME_FAILED, "error"),
        (turns.RESOLVE_OUTCOME_UNSPECIFIED, "error"),
        (77, "error"),
    ],
)
async def test_what_the_session_service_says_of_its_reading_is_counted(
    outcome: turns.ResolveOutcome.ValueType, counted: str
) -> None:
    async def read(seconds: float) -> Response:
        return Response(facts=ATLAS.facts, outcome=outcome)

    desk = Desk()
    assert (await desk.ask(read)).facts == ATLAS.facts
    assert desk.counted() == {counted: 1}


@pytest.mark.spec("6.6")
@pytest.mark.parametrize(
    ("code", "counted"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, "timeout"),
        (grpc.StatusCode.PERMISSION_DENIED, "denied"),
        (grpc.StatusCode.UNAUTHENTICATED, "denied"),
        (grpc.StatusCode.UNIMPLEMENTED, "unconfigured"),
        (grpc.StatusCode.UNAVAILABLE, "error"),
        (grpc.StatusCode.NOT_FOUND, "error"),
        (grpc.StatusCode.INTERNAL, "error"),
    ],
)
async def test_a_refusal_is_counted_and_leaves_everything_unknown(code: grpc.StatusCode, counted: str) -> None:
    async def read(seconds: float) -> Response:
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())

    desk = Desk()
    assert await desk.ask(read) == NOTHING
    assert desk.counted() == {counted: 1}


@pytest.mark.spec("6.5", "6.6")
async def test_a_synchronous_raise_is_caught() -> None:
    def read(seconds: float) -> Awaitable[Response]:
        raise LookupError("before any await")

    desk = Desk()
    assert await desk.ask(read) == NOTHING
    assert desk.counted() == {"error": 1}
    assert len(desk.detached) == 0


@pytest.mark.spec("6.5", "6.6")
async def test_a_read_that_hangs_is_cancelled_when_the_budget_is_over() -> None:
    ended = asyncio.Event()

    async def read(seconds: float) -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ATLAS

    desk = Desk(budget=0.02)
    assert await desk.ask(read) == NOTHING
    assert ended.is_set()
    assert len(desk.detached) == 0
    assert desk.counted() == {"timeout": 1}


@pytest.mark.spec("6.5")
async def test_a_close_that_hangs_is_waited_for_briefly_and_held_until_it_ends(hanging: list[HangingClose]) -> None:
    desk = Desk(budget=0.02)
    began = time.monotonic()
    assert await desk.ask(hanging[0]) == NOTHING
    assert time.monotonic() - began < 2
    assert len(desk.detached) == 1
    gc.collect()
    assert hanging[0].closing.is_set()
    hanging[0].let_go.set()
    await emptied(desk.detached)
    assert desk.counted() == {"timeout": 1}


@pytest.mark.spec("6.5", "6.6")
async def test_while_too_many_reads_hang_no_more_are_begun(hanging: list[HangingClose]) -> None:
    desk = Desk(budget=0.02, cap=3)
    for each in hanging[:3]:
        await desk.ask(each)
    assert len(desk.detached) == 3
    assert await desk.ask(hanging[3]) == NOTHING
    assert not hanging[3].entered.is_set()
    for each in hanging:
        each.let_go.set()
    await emptied(desk.detached)
    assert await desk.ask(answered) != NOTHING
    assert desk.counted() == {"timeout": 4, "ok": 1}


@pytest.mark.spec("6.5")
async def test_a_cancellation_from_outside_propagates_and_is_no_outcome(hanging: list[HangingClose]) -> None:
    desk = Desk()
    turn = asyncio.create_task(desk.ask(hanging[0]))
    await hanging[0].entered.wait()
    turn.cancel()
    await asyncio.wait({turn})
    assert turn.cancelled()
    assert hanging[0].closing.is_set()
    assert desk.counted() == {}
    hanging[0].let_go.set()
    await emptied(desk.detached)


@pytest.mark.spec("6.5")
@pytest.mark.parametrize("error", [LookupError("in the clean-up"), TimeoutError()])
async def test_it_propagates_also_when_the_clean_up_raises(error: Exception) -> None:
    entered = asyncio.Event()

    async def read(seconds: float) -> Response:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise error

    desk = Desk()
    turn = asyncio.create_task(desk.ask(read))
    await entered.wait()
    turn.cancel()
    await asyncio.wait({turn})
    assert turn.cancelled()
    assert len(desk.detached) == 0
    assert desk.counted() == {}


@pytest.mark.spec("6.5")
async def test_a_read_that_cancels_itself_does_not_cancel_the_turn() -> None:
    async def read(seconds: float) -> Response:
        raise asyncio.CancelledError

    desk = Desk()
    assert await desk.ask(read) == NOTHING
    assert desk.counted() == {"error": 1}


@pytest.mark.spec("6.5")
@pytest.mark.parametrize(("budget", "seconds"), [(2.5, 2.5), (1e300, 86_400.0)])
async def test_the_read_knows_its_time(budget: float, seconds: float) -> None:
    given: list[float] = []

    async def read(seconds: float) -> Response:
        given.append(seconds)
        return ATLAS

    await Desk(budget=budget).ask(read)
    assert given == [seconds]


@pytest.mark.spec("6.6")
def test_every_outcome_is_shown_from_the_start_and_nothing_else_labels_the_metrics() -> None:
    registry = CollectorRegistry()
    FactsMetrics(registry)
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    outcomes = {sample.labels["outcome"] for sample in samples if "outcome" in sample.labels}
    assert outcomes == {"ok", "partial", "timeout", "error", "denied", "unconfigured"}
    assert {label for sample in samples for label in sample.labels} == {"outcome", "le"}
