"""The processes of the demo: the two services and what stands around them, each in a process group of its own."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from demo import journal

BIN = Path(sys.executable).parent
START_SECONDS = 30.0
STOP_SECONDS = 10.0
LOG_TAIL_LINES = 15


class ProcessFailedError(Exception):
    """A process did not start, or ended by itself; the message has the end of its log."""


class Process:
    """One program that can be started, killed and started again with the same command."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._environment = environment
        self._running: asyncio.subprocess.Process | None = None
        self._started_at = 0

    async def start(self) -> None:
        """Starts the program."""
        with self.log.open("ab") as log:
            self._started_at = log.tell()
            self._running = await self._spawn(log)

    async def kill(self) -> None:
        """Ends the program's whole group at once, as a power cut would."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Asks the program to end, and ends its whole group when it does not."""
        await self._end(signal.SIGTERM)

    async def wait(self) -> None:
        """Returns when the program has ended."""
        assert self._running is not None
        await self._running.wait()

    def check(self) -> None:
        """Raises when the program has ended by itself."""
        if self._running is not None and self._running.returncode is not None:
            raise ProcessFailedError(f"{self.name} ended with code {self._running.returncode}:\n{self.tail()}")

    def tail(self) -> str:
        """The end of what the program logged since its last start."""
        said = self.log.read_bytes()[self._started_at :].decode(errors="replace")
        return "\n".join(said.splitlines()[-LOG_TAIL_LINES:])

    def remains(self) -> bool:
        """Whether anything of the program's group is still there."""
        return self._running is not None and _signal_group(self._running.pid, 0)

    async def _spawn(self, log: IO[bytes]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "demo.child", *self._command),
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    async def _end(self, how: signal.Signals) -> None:
        if self._running is None:
            return
        _signal_group(self._running.pid, how)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._running.wait(), STOP_SECONDS)
        _signal_group(self._running.pid, signal.SIGKILL)
        await self._running.wait()


def _signal_group(group: int, number: int) -> bool:
    """Sends a signal to a group; false when nothing of it is left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def environment(**settings: str) -> dict[str, str]:
    """This process's environment without settings of the services, plus these; loopback never goes through a proxy."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEPER_")}
    no_proxy = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"]))
    return {**inherited, "NO_PROXY": no_proxy, "no_proxy": no_proxy, **settings}


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def start_stand_in(process: Process, path: Path) -> str:
    """Starts a stand-in and gives the address that its journal names."""
    await process.start()
    entry = await journal.find(path, lambda entry: entry["event"] == "listening", START_SECONDS)
    process.check()
    if entry is None:
        raise ProcessFailedError(f"{process.name} does not listen:\n{process.tail()}")
    return str(entry["at"])


async def healthy(process: Process, address: str) -> None:
    """Returns once the service says that it serves."""
    async with grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await _serves(health):
                    process.check()
                    await asyncio.sleep(journal.POLL_SECONDS)
        except TimeoutError:
            raise ProcessFailedError(f"{process.name} does not serve:\n{process.tail()}") from None


async def _serves(health: Any) -> bool:
    try:
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=1)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
