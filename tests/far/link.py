"""A link between two services that a test can cut or hold: TCP forwarded both ways."""

import asyncio
from collections.abc import Sequence

from tests.far.listener import Listener
from tests.far.log import PATIENCE_SECONDS, Log


class Link(Listener):
    """Forwards every connection to `target` ("host:port") until it is cut; then it breaks them and takes no more."""

    def __init__(self, target: str) -> None:
        super().__init__()
        host, _, port = target.rpartition(":")
        self._host, self._port = host, int(port)
        self._cut = False
        self._open = asyncio.Event()
        self._open.set()
        self._answers = asyncio.Event()
        self._answers.set()
        self._refused: Log[None] = Log("connection to a cut link")
        self._withheld: Log[int] = Log("data on a held link")
        self._writers: set[asyncio.StreamWriter] = set()

    def hold(self) -> None:
        """From now on nothing gets through; what is sent waits here, in order."""
        self._open.clear()

    def hold_answers(self) -> None:
        """From now on nothing gets back; what is sent to the target still arrives."""
        self._answers.clear()

    def release(self) -> None:
        """Forwards what waited, and whatever comes."""
        self._open.set()
        self._answers.set()

    async def withheld(self, number: int = 1, *, within: float = PATIENCE_SECONDS) -> None:
        """Returns once so many pieces of data have had to wait."""
        await self._withheld.at(number, within=within)

    async def refused(self, number: int = 1, *, within: float = PATIENCE_SECONDS) -> None:
        """Returns once so many connections have met a cut link."""
        await self._refused.at(number, within=within)

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
                self._refused.append(None)
                raise ConnectionRefusedError
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except ConnectionError:  # as it would be without a link, when nobody listens
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._writers |= ends
        try:
            await asyncio.gather(
                self._forward(reader, far_writer, (self._open,)),
                self._forward(far_reader, writer, (self._open, self._answers)),
            )
        finally:
            self._writers -= ends
            far_writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, open_when: Sequence[asyncio.Event]
    ) -> None:
        try:
            while data := await reader.read(65536):
                if not all(gate.is_set() for gate in open_when):
                    self._withheld.append(len(data))
                for gate in open_when:
                    await gate.wait()
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # the other end of a cut link
        finally:
            writer.transport.abort()
