"""A session service and a bare echo beside it, each in a process of its own."""

import asyncio
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from demo.processes import BIN, Process, environment, free_port, healthy

USER = ("--tenant", "acme", "--user", "ada")


@dataclass(frozen=True)
class Measured:
    """What runs, and how to reach it."""

    session_address: str
    echo_address: str
    token: str
    """A user's token that the session service takes."""
    database_url: str


@asynccontextmanager
async def measured_processes(database_url: str | None) -> AsyncIterator[Measured]:
    """Both run until the block ends; on a fresh SQLite file unless another, empty database is named."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnkeeper-bench-")))
        address = f"127.0.0.1:{free_port()}"
        url = database_url or f"sqlite:///{folder / 'bench.db'}"
        settings = environment(TURNKEEPER_SESSION_DATABASE_URL=url, TURNKEEPER_SESSION_LISTEN=address)
        service = Process("session-service", [str(BIN / "session-service"), "serve"], settings, folder / "session.log")
        stack.push_async_callback(service.stop)
        await service.start()
        await healthy(service, address)
        command = [str(BIN / "session-service"), "dev-token", *USER]
        asked = await asyncio.create_subprocess_exec(*command, env=settings, stdout=PIPE)
        token, _ = await asked.communicate()
        echo = await asyncio.create_subprocess_exec(str(BIN / "python"), "-m", "bench.echo", stdout=PIPE)
        stack.push_async_callback(echo.wait)
        stack.callback(echo.terminate)
        # Its one line is all that it ever says.
        port = (await echo.stdout.readline()).decode().strip() if echo.stdout else ""
        yield Measured(address, f"127.0.0.1:{port}", token.decode().strip(), url)
