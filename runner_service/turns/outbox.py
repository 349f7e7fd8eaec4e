"""The events of one turn on their way to whoever invoked it: numbered, kept until they are stored, bounded."""

import asyncio
from collections import deque
from collections.abc import Iterator

from turnkeeper.v1 import turn_event_pb2

from runner_service.turns.stop import StopSignal

# How many bytes may wait to be stored before the harness is made to wait.
MAX_UNSTORED_BYTES = 2**20
# A code point takes at most four bytes, so an event stays well under gRPC's 4 MiB.
MAX_DELTA_CODE_POINTS = 16 * 1024


class Outbox:
    """Numbers are given when an event is put in, without gaps. One reader takes the events out."""

    def __init__(self, signal: StopSignal, *, acknowledged: bool) -> None:
        """Events are kept until `stored` names them or, when nobody will acknowledge them, until they were sent."""
        self._signal = signal
        self._acknowledged = acknowledged
        self._probes: deque[turn_event_pb2.TurnEvent] = deque()
        self._unsent: deque[turn_event_pb2.TurnEvent] = deque()
        self._unstored: deque[turn_event_pb2.TurnEvent] = deque()
        self._unstored_bytes = 0
        self._changed = asyncio.Event()
        self._closed = False
        self._error: Exception | None = None
        self.last = 0
        """The number of the newest event."""
        self.stored_through = 0
        """All events up to this number are stored."""

    async def put(self, event: turn_event_pb2.TurnEvent) -> None:
        """Numbers the event and sends it; waits before that while too much is not stored yet."""
        self._signal.check()
        while self._unstored_bytes >= MAX_UNSTORED_BYTES:
            await self._changed.wait()
            self._signal.check()
        self._append(event)

    def end(self, ended: turn_event_pb2.TurnEnded) -> int:
        """Adds the last event, and gives its number."""
        self._append(turn_event_pb2.TurnEvent(turn_ended=ended))
        return self.last

    def probe(self, probe: int) -> None:
        """Sends a lease probe, ahead of whatever waits to be sent."""
        self._probes.append(turn_event_pb2.TurnEvent(lease_probe=turn_event_pb2.LeaseProbe(probe=probe)))
        self._wake()

    def stored(self, number: int) -> None:
        """Takes the peer's word that everything up to `number` is stored; a number from the future is cut."""
        self.stored_through = max(self.stored_through, min(number, self.last))
        while self._unstored and self._unstored[0].number <= self.stored_through:
            self._unstored_bytes -= self._unstored.popleft().ByteSize()
        self._wake()

    async def wait_stored(self, number: int) -> None:
        """Returns when everything up to `number` is stored."""
        while self.stored_through < number:
            await self._changed.wait()

    def unstored(self) -> list[turn_event_pb2.TurnEvent]:
        """The events that are not known to be stored, in order."""
        return list(self._unstored)

    def close(self, error: Exception | None) -> None:
        """Ends the reading: with `error` at once, else when everything was taken."""
        self._closed = True
        self._error = error
        self._wake()

    async def take(self) -> turn_event_pb2.TurnEvent | None:
        """The next event to send; None at the end."""
        while True:
            if self._error is not None:
                raise self._error
            if self._probes:
                return self._probes.popleft()
            if self._unsent:
                return self._unsent.popleft()
            if self._closed:
                return None
            await self._changed.wait()

    def sent(self, event: turn_event_pb2.TurnEvent) -> None:
        """Says that gRPC took the event, which is all that a peer without acknowledgements ever tells."""
        if not self._acknowledged and event.number:
            self.stored(event.number)

    def _append(self, event: turn_event_pb2.TurnEvent) -> None:
        self.last += 1
        event.number = self.last
        self._unsent.append(event)
        self._unstored.append(event)
        self._unstored_bytes += event.ByteSize()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def pieces(text: str) -> Iterator[str]:
    """The text in parts that each fit into one event."""
    for start in range(0, len(text), MAX_DELTA_CODE_POINTS):
        yield text[start : start + MAX_DELTA_CODE_POINTS]
