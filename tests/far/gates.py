"""Named pause points that a test holds and opens."""

import asyncio
from collections import defaultdict
from typing import Any

from tests.far.listener import Listener, end_of
from tests.far.log import PATIENCE_SECONDS, Log


class Gate:
    """A pause point in this process: whoever comes waits until the test opens it. Once open it stays open."""

    def __init__(self, name: str = "gate") -> None:
        self._name = name
        self._arrivals: Log[None] = Log(f"arrival at {name}")
        self._open = asyncio.Event()

    def open(self) -> None:
        """Lets through whoever waits, and whoever comes later."""
        self._open.set()

    async def reached(self, number: int = 1, *, within: float = PATIENCE_SECONDS) -> None:
        """Returns once this many have come to the gate."""
        await self._arrivals.at(number, within=within)

    async def passage(self) -> None:
        """Comes to the gate and waits until it is open."""
        self._arrivals.append(None)
        await self._open.wait()


class GateServer(Listener):
    """The far side of the scripted harness's `wait_gate`: one TCP connection per waiting step.

    The peer sends the gate's name as one line and goes on when a line comes back. `break_off` closes the waiting
    connections instead, which fails their turns.
    """

    def __init__(self) -> None:
        super().__init__()
        self._arrivals: defaultdict[str, Log[None]] = defaultdict(lambda: Log("arrival"))
        self._hang_ups: defaultdict[str, Log[None]] = defaultdict(lambda: Log("disconnect"))
        self._waiting: defaultdict[str, set[asyncio.Future[bool]]] = defaultdict(set)
        self._opened: set[str] = set()

    def open(self, name: str) -> None:
        """Lets through whoever waits at this gate, and whoever comes later."""
        self._opened.add(name)
        self._settle(name, True)

    def release(self, name: str) -> None:
        """Lets through whoever waits at this gate now; the next one waits again."""
        self._settle(name, True)

    def break_off(self, name: str) -> None:
        """Closes the connections that wait at this gate, without letting them through."""
        self._settle(name, False)

    async def reached(self, name: str, number: int = 1, *, within: float = PATIENCE_SECONDS) -> None:
        """Returns once this many have come to the gate."""
        await self._arrivals[name].at(number, within=within)

    async def disconnected(self, name: str, number: int = 1, *, within: float = PATIENCE_SECONDS) -> None:
        """Returns once this many peers hung up while they waited at the gate."""
        await self._hang_ups[name].at(number, within=within)

    def arrivals(self, name: str) -> int:
        """How many have come to the gate so far."""
        return len(self._arrivals[name])

    def waiting(self, name: str) -> int:
        """How many wait at the gate right now."""
        return len(self._waiting[name])

    def _settle(self, name: str, passed: bool) -> None:
        for waiter in self._waiting[name]:
            if not waiter.done():
                waiter.set_result(passed)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keeps one step waiting until its gate opens."""
        name = (await reader.readline()).decode().rstrip("\n")
        if name and await self._passes(name, reader):
            writer.write(b"go\n")
            await writer.drain()

    async def _passes(self, name: str, reader: asyncio.StreamReader) -> bool:
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        gone = asyncio.create_task(end_of(reader))
        self._waiting[name].add(waiter)
        if name in self._opened:
            waiter.set_result(True)
        self._arrivals[name].append(None)
        try:
            either: set[asyncio.Future[Any]] = {waiter, gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if waiter.done():
                return waiter.result()
            self._hang_ups[name].append(None)
            return False
        finally:
            self._waiting[name].discard(waiter)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
