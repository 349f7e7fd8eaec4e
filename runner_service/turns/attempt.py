"""One attempt at one turn: its tasks, and the one supervisor that starts, ends and reports them (SPEC 4.4, 4.5)."""

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc
import structlog
from turnkeeper.v1 import run_pb2, turn_event_pb2
from turnkeeper.v1 import runner_service_pb2 as runner
from turnkeeper.v1 import turn_service_pb2 as turns
from turnkeeper.wire.budgets import Detached
from turnkeeper.wire.configs import Config
from turnkeeper.wire.context import Call
from turnkeeper.wire.errors import invalid

from runner_service.facts.ask import FactsDesk
from runner_service.facts.text import render
from runner_service.harnesses.base import TurnFailed
from runner_service.harnesses.registry import Registry
from runner_service.settings import Settings
from runner_service.tools.builtin import BuiltinTools
from runner_service.tools.callers import ToolCallers
from runner_service.tools.calls import ToolCalls
from runner_service.tools.grpc_calls import GrpcTools
from runner_service.tools.http import HttpTools
from runner_service.tools.ledger import NoLedger
from runner_service.tools.offer import allowed, offered
from runner_service.turns.direct import DirectDoor
from runner_service.turns.door import SessionDoor
from runner_service.turns.lease import NoLease, ProbedLease, TurnLease
from runner_service.turns.live import LiveTurn
from runner_service.turns.opening import TurnOpening
from runner_service.turns.outbox import Outbox
from runner_service.turns.scope import end_task
from runner_service.turns.stop import StopSignal, TurnStopped

_log = structlog.get_logger("runner_service.turns")

ErrorT = TypeVar("ErrorT", bound=Exception)


@dataclass(frozen=True)
class TurnResources:
    """What all turns of the process share."""

    settings: Settings
    registry: Registry
    http: HttpTools
    grpc_tools: GrpcTools
    sessions: grpc.aio.Channel
    """The process-owned channel to the session service."""
    detached: Detached
    """Holds what did not end in time."""
    facts: FactsDesk
    """Where every turn asks for its facts."""


class Attempt:
    """Everything that one ExecuteTurn call sets in motion. `supervise` owns it; the call's handler only looks on."""

    def __init__(self, start: runner.TurnStart, config: Config, call: Call, resources: TurnResources) -> None:
        self._start = start
        self._config = config
        self._resources = resources
        self._grace = resources.settings.stop_grace_seconds
        self._signal = StopSignal()
        self._call_over = asyncio.Event()
        self._timed_out = asyncio.Event()
        claims = call.context.run
        self._log = _log.bind(call_id=call.context.call_id, run_id=claims.run_id if claims else "")
        self._door = (
            SessionDoor(resources.sessions, call, self._signal, resources.settings.max_prompt_bytes) if claims else None
        )
        door = self._door or DirectDoor(resources.sessions, call, start, self._signal)
        self._opening: TurnOpening = door
        self.outbox = Outbox(self._signal, acknowledged=self._door is not None)
        self._lease = self._make_lease()
        self._tools = allowed(config.tools, call.context.scopes)
        self._calls = ToolCalls(
            claims.attempt if claims else 0,
            self._tools,
            self._door or NoLedger(),
            ToolCallers(resources.http, resources.grpc_tools, BuiltinTools(door)),
            self._flush,
            self._check,
            self._left,
        )
        self._turn_end = math.inf
        self._remaining = call.remaining

    def call_ended(self) -> None:
        """To be called when the ExecuteTurn call is over, however it ended."""
        self._call_over.set()
        self._signal.set(None)

    def stop(self, cause: Exception) -> None:
        """Stops the turn before its end and answers the call with `cause`."""
        self._signal.set(cause)

    async def supervise(self, requests: AsyncIterator[runner.ExecuteTurnRequest]) -> None:
        """Runs the turn until nothing of it is left, and until that is reported where it must be."""
        watchers = [asyncio.create_task(self._listen(requests)), asyncio.create_task(self._lease.keep())]
        work = asyncio.create_task(self._work())
        try:
            ended, stopped = await self._until_over(work)
            if ended is None or not await self._deliver(ended):
                self.outbox.close(self._signal.cause)
                await self._report(stopped)
        finally:
            await self._leave((*watchers, work))

    async def _leave(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Leaves no task behind without an owner, also when the supervisor itself was cancelled."""
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=self._grace)
        for task in tasks:
            self._resources.detached.adopt(task)

    async def _work(self) -> None:
        """The harness's own task, from opening it to its last word."""
        harness = self._resources.registry.get(self._config.harness)
        async with harness.open(self._config) as ready:
            turn = await self._begin()
            loop = asyncio.get_running_loop()
            self._turn_end = loop.time() + self._config.limits.turn_seconds
            clock = loop.call_at(self._turn_end, self._timed_out.set)
            try:
                await ready.play(turn)
            finally:
                clock.cancel()

    async def _begin(self) -> LiveTurn:
        """BeginTurn, the facts, the history, and what comes of them: the prompt (SPEC 3.4)."""
        await self._opening.begin_turn(self._config.harness, self._resources.settings.store_id)
        found = await self._resources.facts.ask(self._opening.resolve_turn_context)
        self._calls.bind_from(found.run_context)
        return LiveTurn(
            config=self._config,
            preamble=render(found.facts, self._tools.keys()),
            prompt=await self._opening.prompt(),
            tools=offered(self._tools.values()),
            calls=self._calls,
            outbox=self.outbox,
            lease=self._lease,
            signal=self._signal,
        )

    async def _until_over(self, work: asyncio.Task[None]) -> tuple[turn_event_pb2.TurnEnded | None, bool]:
        """Waits for the turn's end or for a reason to stop it; how it ended, and whether all of it has stopped."""
        waiters = [asyncio.create_task(event.wait()) for event in (self._signal, self._timed_out)]
        try:
            await asyncio.wait({work, *waiters}, return_when=asyncio.FIRST_COMPLETED)
            # Read before anything is cancelled: only an end that the harness reached by itself is one.
            ended = self._end_of(work)
            if ended is None and not self._signal.is_set:
                ended = _failed(run_pb2.FAILURE_REASON_TURN_TIMEOUT, "The turn took longer than its limit.")
            self._signal.close()
            stopped = await end_task(work, self._grace)
        finally:
            for waiter in waiters:
                waiter.cancel()
        if not stopped:
            self._log.error("turn does not stop", harness=self._config.harness)
        return ended, stopped

    def _end_of(self, work: asyncio.Task[None]) -> turn_event_pb2.TurnEnded | None:
        if not work.done() or self._signal.refused_work:
            return None
        if work.cancelled():
            return _failed(run_pb2.FAILURE_REASON_HARNESS_ERROR, "The harness broke itself off.")
        error = work.exception()
        if error is None:
            return turn_event_pb2.TurnEnded(completed=turn_event_pb2.TurnCompleted())
        known = _first(error, TurnFailed)
        if known is not None:
            return _failed(known.reason, known.message)
        if _first(error, TurnStopped) is not None:
            return None
        error_id = uuid.uuid4().hex
        self._log.error("harness failed", error_id=error_id, harness=self._config.harness, exc_info=error)
        return _failed(run_pb2.FAILURE_REASON_HARNESS_ERROR, f"The harness failed; the runner's log has {error_id}.")

    async def _deliver(self, ended: turn_event_pb2.TurnEnded) -> bool:
        """Sends the end and waits until it is stored; false when the call broke before that."""
        await self._settle()
        number = self.outbox.end(ended)
        stored = asyncio.create_task(self.outbox.wait_stored(number))
        stop = asyncio.create_task(self._signal.wait())
        await asyncio.wait({stored, stop}, return_when=asyncio.FIRST_COMPLETED)
        stored.cancel()
        stop.cancel()
        if self.outbox.stored_through < number:
            return False
        self._log.info("turn ended", outcome=ended.WhichOneof("outcome"), reason=_reason_name(ended))
        self.outbox.close(None)
        over = asyncio.create_task(self._call_over.wait())
        await asyncio.wait({over}, timeout=self._grace)
        over.cancel()
        return True

    async def _settle(self) -> None:
        """Records what is known of calls that the end of the turn cut off, in a short time or not at all."""
        cut_off = [*self._calls.unrecorded(), *self._calls.cut_off()]
        if self._door is not None and cut_off:
            recording = asyncio.create_task(self._door.record(cut_off))
            await asyncio.wait({recording}, timeout=self._grace)
            await self._leave([recording])

    async def _report(self, stopped: bool) -> None:
        """Tells the session service that nothing of the turn runs any more, but only if that is true."""
        calls = self._calls.stopped()
        self._log.info("turn stopped", unstored=len(self.outbox.unstored()), open_calls=len(calls), stopped=stopped)
        if self._door is not None and stopped:
            await self._door.record(self._calls.unrecorded())
            await self._door.report(
                turns.ReportTurnStoppedRequest(events=self.outbox.unstored(), stopped_tool_calls=calls)
            )

    async def _listen(self, requests: AsyncIterator[runner.ExecuteTurnRequest]) -> None:
        """Takes what the peer says during the turn."""
        try:
            async for request in requests:
                self._take(request)
        except Exception as error:
            self._signal.set(error)
            return
        if self._door is not None:
            # A dispatcher that says no more renews nothing and acknowledges nothing.
            self._signal.set(None)

    def _take(self, request: runner.ExecuteTurnRequest) -> None:
        match request.WhichOneof("body"):
            case "stored":
                if self._door is not None:
                    self.outbox.stored(request.stored.number)
            case "lease_renewed":
                renewed = request.lease_renewed
                self._lease.renewed(renewed.probe, renewed.remaining.ToTimedelta().total_seconds())
            case "start":
                raise invalid("start", "only the first message of a call starts its turn")

    def _make_lease(self) -> TurnLease:
        if self._door is None:
            return NoLease()
        lease = self._start.lease
        return ProbedLease(
            lease.duration.ToTimedelta().total_seconds(),
            lease.probe_interval.ToTimedelta().total_seconds(),
            self.outbox.probe,
            self._signal,
        )

    async def _flush(self) -> int:
        """Waits until all text so far is stored, so that a tool call's event comes after it (SPEC 5.2)."""
        number = self.outbox.last
        await self.outbox.wait_stored(number)
        return number

    def _left(self) -> float:
        """Seconds until the turn must be over: by its own clock, or because its call ends."""
        by_clock = self._turn_end - asyncio.get_running_loop().time()
        by_call = self._remaining()
        return max(0.0, by_clock if by_call is None else min(by_clock, by_call))

    async def _check(self) -> None:
        self._signal.check()
        await self._lease.check()
        self._signal.check()


def _first(error: BaseException, kind: type[ErrorT]) -> ErrorT | None:
    """The first error of this kind in what a task raised, which may be a group."""
    if isinstance(error, kind):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for each in error.exceptions if (found := _first(each, kind)) is not None), None)
    return None


def _failed(reason: run_pb2.FailureReason.ValueType, message: str) -> turn_event_pb2.TurnEnded:
    return turn_event_pb2.TurnEnded(failed=run_pb2.RunFailure(reason=reason, message=message))


def _reason_name(ended: turn_event_pb2.TurnEnded) -> str:
    return run_pb2.FailureReason.Name(ended.failed.reason) if ended.HasField("failed") else ""
