"""The supervisor of one attempt: it owns the ExecuteTurn call and every task around it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from sqlalchemy import Connection
from turnkeeper.v1.runner_service_pb2 import (
    EventsStored,
    ExecuteTurnRequest,
    ExecuteTurnResponse,
    Lease,
    LeaseRenewed,
    TurnStart,
)
from turnkeeper.wire.errors import Refused

from session_service.dispatch.claims import renew
from session_service.dispatch.inbox import Inbox
from session_service.dispatch.model import Claim, LeaseTerms
from session_service.runs.store import control_topic
from session_service.storage.clock import MICROSECONDS
from session_service.storage.write import Storage
from session_service.times import duration
from session_service.turns.record import Taken, give_up, take_events

if TYPE_CHECKING:  # a name of the stub file alone
    from turnkeeper.v1.runner_service_pb2_grpc import RunnerServiceAsyncStub

_RETRY_SECONDS = 0.2
_CLOSE_SECONDS = 2.0
_log = structlog.get_logger(__name__)

ExecuteTurnCall = grpc.aio.StreamStreamCall[ExecuteTurnRequest, ExecuteTurnResponse]


class Attempt:
    """Executes one claim over one call, and stops when the database says that the attempt is over."""

    def __init__(
        self, storage: Storage, runner: "RunnerServiceAsyncStub", claim: Claim, token: str, terms: LeaseTerms
    ) -> None:
        self._storage, self._runner, self._claim, self._token, self._terms = storage, runner, claim, token, terms
        self._inbox = Inbox()
        self._sending = asyncio.Lock()  # one message at a time leaves on a stream
        self._probe = 0
        self._log = _log.bind(run_id=claim.run.run_id, attempt=claim.run.attempt)

    async def execute(self) -> None:
        """Returns when the attempt is over, or out of our hands: its report or its lease decides then (SPEC 4.5)."""
        call = self._runner.ExecuteTurn(
            timeout=self._claim.remaining / MICROSECONDS, metadata=(("authorization", f"Bearer {self._token}"),)
        )
        reader = asyncio.create_task(self._read(call), name="read")
        writer = asyncio.create_task(self._store(call), name="store")
        heart = asyncio.create_task(self._beat(call), name="beat")
        tasks: tuple[asyncio.Task[Any], ...] = (reader, writer, heart)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and not heart.done():
                heart.cancel()  # the call is over: nothing is renewed any more, what it brought is still stored
                await asyncio.wait((writer,))
            if _result(writer) is Taken.ENDED:
                await self._close(call, reader)
        finally:
            call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._tell(tasks)
        if _result(writer) is Taken.STORED:
            key, attempt = self._claim.key, self._claim.run.attempt
            await self._write(partial(give_up, key=key, attempt=attempt, refused=_refused(reader)))

    async def _read(self, call: ExecuteTurnCall) -> None:
        """Brings the stream's events into the inbox, until the stream ends."""
        run = self._claim.run
        start = TurnStart(
            input=self._claim.input,
            config_json=self._claim.config_json,
            turn=run.turn,
            lease=Lease(duration=duration(self._terms.lease), probe_interval=duration(self._terms.lease // 3)),
        )
        try:
            await self._send(call, ExecuteTurnRequest(start=start))
            async for response in call:
                event = response.event
                if event.WhichOneof("body") == "lease_probe":
                    self._probe = event.lease_probe.probe
                    self._storage.hints.wake((control_topic(run.run_id),))
                else:
                    await self._inbox.put(event)
        finally:
            self._inbox.close()

    async def _store(self, call: ExecuteTurnCall) -> Taken:
        """Stores what comes in and acknowledges it, until the run leaves the attempt's hands or the stream is over."""
        key, attempt = self._claim.key, self._claim.run.attempt
        while events := await self._inbox.take():
            taken: Taken = await self._write(partial(take_events, key=key, attempt=attempt, events=events))
            if taken is Taken.FENCED:
                return taken
            await self._send(call, ExecuteTurnRequest(stored=EventsStored(number=events[-1].number)))
            if taken is Taken.ENDED:
                return taken
        return Taken.STORED

    async def _beat(self, call: ExecuteTurnCall) -> None:
        """Renews the lease, answers probes after a committed renewal; returns when there is nothing to renew."""
        key, attempt = self._claim.key, self._claim.run.attempt
        with self._storage.hints.listen(control_topic(key.run_id)) as control:
            while True:
                if not self._probe:
                    await control.wait(self._terms.lease / 3 / MICROSECONDS)
                probe, self._probe = self._probe, 0
                if not await self._write(partial(renew, key=key, attempt=attempt, terms=self._terms)):
                    return
                if probe:
                    renewed = LeaseRenewed(probe=probe, remaining=duration(self._terms.lease))
                    await self._send(call, ExecuteTurnRequest(lease_renewed=renewed))

    async def _close(self, call: ExecuteTurnCall, reader: asyncio.Task[None]) -> None:
        """The turn is settled: half-close, and let the runner end its side."""
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            async with self._sending:
                await call.done_writing()
        await asyncio.wait((reader,), timeout=_CLOSE_SECONDS)

    async def _send(self, call: ExecuteTurnCall, request: ExecuteTurnRequest) -> None:
        """Sends unless the call is over, which its reader sees too."""
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            async with self._sending:
                await call.write(request)

    async def _write(self, change: Callable[[Connection], Any]) -> Any:
        """A write that outlasts a database that is away for a while; the lease runs out by itself meanwhile."""
        while True:
            try:
                return await self._storage.write(self._claim.key.tenant_id, change)
            except Refused:
                await asyncio.sleep(_RETRY_SECONDS)

    def _tell(self, tasks: tuple[asyncio.Task[Any], ...]) -> None:
        """Logs why the call ended; errors of the call are ordinary, everything else is not."""
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            if isinstance(error, grpc.aio.AioRpcError):
                self._log.info("call ended", code=error.code().name)
            elif error is not None:
                self._log.error("attempt broke", task=task.get_name(), exc_info=error)


def _refused(reader: asyncio.Task[None]) -> bool:
    """Whether the runner took the turn itself for invalid: asking again would not mend it."""
    error = None if reader.cancelled() else reader.exception()
    return isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.INVALID_ARGUMENT


def _result(writer: asyncio.Task[Taken]) -> Taken | None:
    """What the writer came to; None while it runs, or when it was cut short."""
    if not writer.done() or writer.cancelled() or writer.exception() is not None:
        return None
    return writer.result()
