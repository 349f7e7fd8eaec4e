"""One owner of a deadline for work that must never hold a turn up (SPEC 6.5)."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


def parse_budget(text: str | None, default: float) -> float:
    """A budget in seconds from a setting; anything that is not finite and positive is the default."""
    try:
        seconds = float(text) if text is not None else default
    except ValueError:
        return default
    return seconds if math.isfinite(seconds) and seconds > 0 else default


class Detached:
    """Keeps tasks that did not end within their grace until they do, and bounds how many there may be."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def full(self) -> bool:
        """Whether no more work may be begun until some of the detached ends."""
        return len(self._tasks) >= self._cap

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Holds the task strongly until it ends; its outcome interests nobody any more."""
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def aclose(self, grace: float) -> None:
        """Cancels what is left and waits for it at most `grace` seconds."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=grace)


async def within(seconds: float, work: Callable[[], Awaitable[T]], detached: Detached, grace: float = 0.1) -> T:
    """Calls and awaits `work` for at most `seconds`; TimeoutError when it took longer or `detached` is full.

    On expiry, and on a cancellation from outside, the work is cancelled and waited for at most `grace` seconds, then
    left to `detached`. A cancellation from outside propagates, whatever the clean-up does.
    """
    if detached.full:
        raise TimeoutError("too much earlier work has not ended")
    task = asyncio.create_task(_called(work))
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return _outcome(task)
        task.cancel()
        await asyncio.wait({task}, timeout=grace)
    finally:
        if not task.done():
            await _let_go(task, detached, grace)
        elif not task.cancelled():
            task.exception()
    raise TimeoutError(f"not done within {seconds} s")


async def _called(work: Callable[[], Awaitable[T]]) -> T:
    # Called inside the task, so that a synchronous raise is an outcome of the work like any other.
    return await work()


def _outcome(task: asyncio.Task[T]) -> T:
    if task.cancelled():
        # Passed on as it is, it would read as a cancellation of the caller.
        raise RuntimeError("the work cancelled itself")
    return task.result()


async def _let_go(task: asyncio.Task[T], detached: Detached, grace: float) -> None:
    detached.adopt(task)
    if not task.cancelling():
        task.cancel()
        await asyncio.wait({task}, timeout=grace)
