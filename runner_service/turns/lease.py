"""The lease under which a run's turn works: asked for over the call, counted from the asking (SPEC 3.3)."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from turnkeeper.v1 import error_reason_pb2
from turnkeeper.wire.errors import Refused

from runner_service.turns.stop import StopSignal


class TurnLease(Protocol):
    """What bounds a turn's right to work."""

    async def check(self) -> None:
        """Returns while the turn may work, raises when it may not any more."""

    async def keep(self) -> None:
        """Keeps the lease for as long as it can be kept; returns when it is over."""

    def renewed(self, probe: int, remaining: float) -> None:
        """Takes the answer to a probe: what is left in seconds, from the sending of the probe."""


class NoLease:
    """A direct turn is bounded by its call alone."""

    async def check(self) -> None:
        """Always goes on."""

    async def keep(self) -> None:
        """Nothing to keep."""

    def renewed(self, probe: int, remaining: float) -> None:
        """Nothing to renew."""


class ProbedLease:
    """Nothing is granted before the first answer; a renewal only ever lengthens the lease."""

    def __init__(
        self,
        duration: float,
        interval: float,
        send_probe: Callable[[int], None],
        signal: StopSignal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`duration` and `interval` in seconds; the first answer is awaited for at most `duration`."""
        self._interval = interval
        self._send_probe = send_probe
        self._signal = signal
        self._clock = clock
        self._end = clock() + duration
        self._granted = asyncio.Event()
        self._renewal = asyncio.Event()
        self._sent: dict[int, float] = {}
        self._last_probe = 0

    async def check(self) -> None:
        """Waits until the lease is known; raises when it is over."""
        await self._granted.wait()
        if self._clock() >= self._end:
            raise self._signal.stop(Refused(error_reason_pb2.ERROR_REASON_ATTEMPT_FENCED))

    async def keep(self) -> None:
        """Probes at each interval; stops the turn when the lease is over, and returns."""
        next_probe = self._clock()
        while (now := self._clock()) < self._end:
            if now >= next_probe:
                self._probe()
                next_probe = now + self._interval
            # The first answer may move the end nearer, so every answer ends the wait.
            self._renewal.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(next_probe, self._end) - now):
                    await self._renewal.wait()
        self._signal.set(Refused(error_reason_pb2.ERROR_REASON_ATTEMPT_FENCED))

    def renewed(self, probe: int, remaining: float) -> None:
        """An answer to a probe that was never sent, or was answered before, changes nothing."""
        sent = self._sent.pop(probe, None)
        if sent is None:
            return
        for older in [each for each in self._sent if each < probe]:
            del self._sent[older]
        end = sent + remaining
        self._end = max(self._end, end) if self._granted.is_set() else end
        self._granted.set()
        self._renewal.set()

    def _probe(self) -> None:
        self._last_probe += 1
        # Stamped before it is sent: the runner's count then ends before the dispatcher's, never after.
        self._sent[self._last_probe] = self._clock()
        self._send_probe(self._last_probe)
