"""What every far side is: a listening socket of the test's own loop, and the connections that came to it."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self


class Listener:
    """Listens on a free loopback port as long as its context lasts; a subclass says what a connection is answered."""

    def __init__(self) -> None:
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one connection; when it returns, the socket is closed."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        failures = [
            result
            for result in await asyncio.gather(*connections, return_exceptions=True)
            if isinstance(result, Exception)
        ]
        if failures and error is None:
            raise ExceptionGroup("a far side failed", failures)

    @property
    def address(self) -> str:
        """Where it listens, as "127.0.0.1:port"."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def open_connections(self) -> int:
        """How many sockets are open right now, idle ones included."""
        return sum(not connection.done() for connection in self._connections)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._answer(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._forget)

    def _forget(self, connection: asyncio.Task[None]) -> None:
        # One that failed is kept until the context ends, which raises its error.
        if connection.cancelled() or connection.exception() is None:
            self._connections.discard(connection)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.serve(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def end_of(reader: asyncio.StreamReader) -> None:
    """Returns when the peer closed the socket. No peer here has anything to send while it waits for a reply."""
    try:
        early = await reader.read(1)
    except ConnectionError:
        return
    assert early == b"", f"the peer sent {early!r} before the reply was whole"
