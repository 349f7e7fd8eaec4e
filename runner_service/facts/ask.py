"""Asks for a turn's facts and run context: once, under one budget, never failing the turn (SPEC 6.5, 6.6)."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc
import structlog
from turnkeeper.v1 import facts_pb2
from turnkeeper.v1 import turn_service_pb2 as turns
from turnkeeper.wire.budgets import Detached, within

from runner_service.facts.metrics import FactsMetrics, FactsOutcome

GRACE_SECONDS = 0.1
"""How long a read that was cancelled may take to end before the turn goes on without it."""
MAX_READ_SECONDS = 86_400.0
"""gRPC takes a deadline in the far future for one that is over."""

Read = Callable[[float], Awaitable[turns.ResolveTurnContextResponse]]
"""Begins one read that may take so many seconds."""

_log = structlog.get_logger("runner_service.facts")

_ANSWERED = {
    turns.RESOLVE_OUTCOME_OK: FactsOutcome.OK,
    turns.RESOLVE_OUTCOME_PARTIAL: FactsOutcome.PARTIAL,
    # The session's half stands; which agent is meant is what is not known.
    turns.RESOLVE_OUTCOME_AMBIGUOUS: FactsOutcome.PARTIAL,
    turns.RESOLVE_OUTCOME_DENIED: FactsOutcome.DENIED,
    turns.RESOLVE_OUTCOME_FAILED: FactsOutcome.ERROR,
}
_REFUSED = {
    grpc.StatusCode.DEADLINE_EXCEEDED: FactsOutcome.TIMEOUT,
    grpc.StatusCode.PERMISSION_DENIED: FactsOutcome.DENIED,
    grpc.StatusCode.UNAUTHENTICATED: FactsOutcome.DENIED,
    # What the runner was pointed at has no facts to give.
    grpc.StatusCode.UNIMPLEMENTED: FactsOutcome.UNCONFIGURED,
}


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """What is known of a turn. Without an answer that is nothing: facts read as unknown, and no key can be bound."""

    facts: facts_pb2.Facts = field(default_factory=facts_pb2.Facts)
    run_context: facts_pb2.RunContext = field(default_factory=facts_pb2.RunContext)


class FactsDesk:
    """Where all turns of the process ask. The owner of `detached` closes it."""

    def __init__(self, budget: float, detached: Detached, metrics: FactsMetrics) -> None:
        """`budget` is what one turn may spend, in seconds."""
        self.budget = budget
        self._detached = detached
        self._metrics = metrics

    async def ask(self, read: Read) -> TurnFacts:
        """What `read` answers within the budget, or nothing. Only a cancellation from outside is raised."""
        began = time.monotonic()
        try:
            seconds = min(self.budget, MAX_READ_SECONDS)
            response = await within(self.budget, lambda: read(seconds), self._detached, GRACE_SECONDS)
        except Exception as error:
            outcome, found = _failure(error), TurnFacts()
            # The session service's words may name what the turn may not know, so only their kind is logged.
            _log.warning("facts not read", outcome=outcome, error=type(error).__name__)
        else:
            outcome = _ANSWERED.get(response.outcome, FactsOutcome.ERROR)
            found = TurnFacts(response.facts, response.run_context)
        self._metrics.count(outcome, time.monotonic() - began)
        return found


def _failure(error: Exception) -> FactsOutcome:
    if isinstance(error, TimeoutError):
        return FactsOutcome.TIMEOUT
    if isinstance(error, grpc.aio.AioRpcError):
        return _REFUSED.get(error.code(), FactsOutcome.ERROR)
    return FactsOutcome.ERROR
