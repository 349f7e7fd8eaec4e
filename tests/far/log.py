"""A log that a test can wait on."""

import asyncio
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 10.0
"""How long a test waits for something that should have happened, before it fails with what did happen."""


class Log(Generic[T]):
    """What happened, in order, and a way to wait for the n-th entry."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._entries: list[T] = []
        self._grown = asyncio.Event()

    def append(self, entry: T) -> None:
        """Adds an entry and wakes whoever waits for it."""
        self._entries.append(entry)
        self._grown.set()
        self._grown = asyncio.Event()

    async def at(self, number: int = 1, *, within: float = PATIENCE_SECONDS) -> T:
        """The entry of this number, counted from 1, as soon as it is there."""
        try:
            async with asyncio.timeout(within):
                while len(self._entries) < number:
                    await self._grown.wait()
        except TimeoutError:
            raise AssertionError(
                f"{self._what} {number} did not come within {within} s; so far: {self._entries}"
            ) from None
        return self._entries[number - 1]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries)

    def __getitem__(self, index: int) -> T:
        return self._entries[index]
