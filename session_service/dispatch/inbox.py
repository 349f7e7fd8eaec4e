"""Turn events on their way from the stream to the log: merged for a moment, bounded, never reordered (SPEC 5.5)."""

import asyncio

from turnkeeper.v1.turn_event_pb2 import TurnEvent

MERGE_SECONDS = 0.025
MERGE_BYTES = 4096
CAPACITY = 1024 * 1024
"""Bytes of events that wait at most; a reader of the stream waits beyond it, and gRPC holds the runner back."""


class Inbox:
    """A queue of one stream's events between its reader and its writer."""

    def __init__(self) -> None:
        self._events: list[TurnEvent] = []
        self._bytes = 0
        self._urgent = asyncio.Event()  # something that is not to wait for neighbours
        self._filled = asyncio.Event()
        self._space = asyncio.Event()
        self._space.set()
        self._closed = False

    def close(self) -> None:
        """Says that nothing more comes."""
        self._closed = True
        self._filled.set()
        self._urgent.set()

    async def put(self, event: TurnEvent) -> None:
        """Adds an event; waits while the inbox is full."""
        await self._space.wait()
        self._events.append(event)
        self._bytes += event.ByteSize()
        self._filled.set()
        if event.WhichOneof("body") not in {"text_delta", "reasoning_delta"} or self._bytes >= MERGE_BYTES:
            self._urgent.set()
        if self._bytes >= CAPACITY:
            self._space.clear()

    async def take(self) -> list[TurnEvent]:
        """Everything that has come, after waiting a moment for neighbours of a text; nothing at the end."""
        await self._filled.wait()
        try:
            async with asyncio.timeout(MERGE_SECONDS):
                await self._urgent.wait()
        except TimeoutError:
            pass
        taken, self._events, self._bytes = self._events, [], 0
        if not self._closed:
            self._filled.clear()
            self._urgent.clear()
        self._space.set()
        return _merged(taken)


def _merged(events: list[TurnEvent]) -> list[TurnEvent]:
    """Neighbouring texts of one step as one event, under the number of the last; the text is the same."""
    merged: list[TurnEvent] = []
    for event in events:
        kind = event.WhichOneof("body")
        last = merged[-1] if merged else None
        if last is not None and kind == "text_delta" and last.WhichOneof("body") == kind:
            mine, theirs = last.text_delta, event.text_delta
            if mine.step == theirs.step and len(mine.text) + len(theirs.text) <= MERGE_BYTES:
                mine.text += theirs.text
                last.number = event.number
                continue
        merged.append(event)
    return merged
