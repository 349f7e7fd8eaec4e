"""Wake-ups between tasks. A hint says "look again", nothing else: losing all of them delays, never loses (SPEC 5.1)."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

QUEUE = "queue"
"""The topic of the dispatcher: something may be claimable."""


class Hints:
    """Topics that tasks of this process listen to. A topic is a run's id, or QUEUE."""

    def __init__(self) -> None:
        self._listeners: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    @contextmanager
    def listen(self, topic: str) -> Iterator["Listener"]:
        """Hears every wake-up from here on; enter it before reading, so that nothing falls between."""
        event = asyncio.Event()
        self._listeners[topic].add(event)
        try:
            yield Listener(event)
        finally:
            self._listeners[topic].discard(event)
            if not self._listeners[topic]:
                del self._listeners[topic]

    def wake(self, topics: Iterable[str]) -> None:
        """Wakes whoever listens to one of the topics."""
        for topic in topics:
            for event in self._listeners.get(topic, ()):
                event.set()


class Listener:
    """One task's ear on a topic; wake-ups between two waits are one."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def wait(self, at_most: float) -> None:
        """Returns at a wake-up, or after `at_most` seconds, since hints may be lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most):
                await self._event.wait()
        self._event.clear()
