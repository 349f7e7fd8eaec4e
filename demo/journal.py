"""What a stand-in process saw, as lines of JSON that the driver reads while it goes on.

The driver must not take the services' word for what reached the outside, so each outer process keeps its own journal.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.05


def write(path: Path, **entry: Any) -> None:
    """Adds an entry."""
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """All whole entries so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


async def find(path: Path, wanted: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any] | None:
    """The first entry that is wanted, waited for at most so many seconds; None when it did not come."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                for entry in read(path):
                    if wanted(entry):
                        return entry
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        return None
