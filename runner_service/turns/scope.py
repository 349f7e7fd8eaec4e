"""Ends a task that was told to stop, also one that does not want to (cpython#86296)."""

import asyncio
from typing import Any

# How often a task that goes on is cancelled again before it is given up.
MAX_CANCELS = 20


async def end_task(task: asyncio.Task[Any], grace: float) -> bool:
    """Cancels the task and waits until it is over; false when it would not end.

    A task that catches the cancellation once and goes on is cancelled again after half the grace (seconds). Not
    sooner: another cancellation would break off a clean-up that is doing well.
    """
    for _ in range(MAX_CANCELS):
        if task.done():
            return True
        task.cancel()
        await asyncio.wait({task}, timeout=grace / 2)
    return task.done()
