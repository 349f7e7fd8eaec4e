"""The turns of this process: taken in, held until nothing of them is left, and awaited at the end."""

import asyncio
from collections.abc import AsyncIterator

import structlog
from turnkeeper.v1 import runner_service_pb2 as runner
from turnkeeper.wire.configs import parse_config
from turnkeeper.wire.context import Call, TokenKind
from turnkeeper.wire.errors import invalid

from runner_service.turns.attempt import Attempt, TurnResources

_log = structlog.get_logger("runner_service.turns")


class Turns:
    """Owns the supervisor of every attempt. They outlive the calls that began them by their reports."""

    def __init__(self, resources: TurnResources) -> None:
        self._resources = resources
        self._supervisors: set[asyncio.Task[None]] = set()

    def begin(self, start: runner.TurnStart, requests: AsyncIterator[runner.ExecuteTurnRequest], call: Call) -> Attempt:
        """Starts a turn, or refuses it before anything was done."""
        if call.context.kind is TokenKind.RUN:
            _require_run_start(start)
        else:
            _require_direct_start(start)
        attempt = Attempt(start, parse_config(start.config_json), call, self._resources)
        supervisor = asyncio.create_task(attempt.supervise(requests))
        self._supervisors.add(supervisor)
        supervisor.add_done_callback(lambda done: self._ended(attempt, done))
        return attempt

    async def close(self, grace: float) -> None:
        """Waits for the reports of turns whose calls are over, at most `grace` seconds; then lets go of them."""
        if self._supervisors:
            await asyncio.wait(set(self._supervisors), timeout=grace)
        left = set(self._supervisors)
        for supervisor in left:
            supervisor.cancel()
        if left:
            _log.warning("turns left unreported", turns=len(left))
            await asyncio.wait(left, timeout=1.0)

    def _ended(self, attempt: Attempt, supervisor: asyncio.Task[None]) -> None:
        self._supervisors.discard(supervisor)
        error = None if supervisor.cancelled() else supervisor.exception()
        if error is not None:
            _log.error("supervisor failed", exc_info=error)
        # Nothing will be put in any more, so a handler that still reads must not wait for ever.
        attempt.outbox.close(error if isinstance(error, Exception) else None)


def _require_run_start(start: runner.TurnStart) -> None:
    """A run's session and target come from its row, never from the request (SPEC 6.4)."""
    if start.references:
        raise invalid("start.references", "must be empty with a run token")
    if start.session_id:
        raise invalid("start.session_id", "must be empty with a run token")
    if not start.HasField("lease"):
        raise invalid("start.lease", "is required with a run token")


def _require_direct_start(start: runner.TurnStart) -> None:
    if start.HasField("lease"):
        raise invalid("start.lease", "must be unset with a user token")
    if not start.input:
        raise invalid("start.input", "is required with a user token")
