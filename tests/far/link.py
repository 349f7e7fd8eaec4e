"""A link between two services that a test can cut: TCP forwarded both ways."""

import asyncio

from tests.far.listener import Listener


class Link(Listener):
    """Forwards every connection to `target` ("host:port") until it is cut; then it breaks them and takes no more."""

    def __init__(self, target: str) -> None:
        super().__init__()
        host, _, port = target.rpartition(":")
        self._host, self._port = host, int(port)
        self._cut = False
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Breaks what is connected, and every connection to come."""
        self._cut = True
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        """Connections to come are forwarded again."""
        self._cut = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards one connection."""
        try:
            if self._cut:
                raise ConnectionRefusedError
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except ConnectionError:  # as it would be without a link, when nobody listens
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._writers |= ends
        try:
            await asyncio.gather(_forward(reader, far_writer), _forward(far_reader, writer))
        finally:
            self._writers -= ends
            far_writer.transport.abort()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # the other end of a cut link
    finally:
        writer.transport.abort()
