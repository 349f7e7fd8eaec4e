"""A small HTTP/1.1 server on raw asyncio sockets, which sees when its peer hangs up in the middle of a reply.

A framework would hide that: it notices a closed socket at its next write, if ever. Here a reader stands on the socket
for as long as a reply is being made.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.far.listener import Listener, end_of
from tests.far.log import PATIENCE_SECONDS, Log


@dataclass(frozen=True)
class Request:
    """One request as it came over the wire. Header names are in lower case; `target` is the path with its query."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """The path as it was encoded, without the query."""
        return urlsplit(self.target).path

    @property
    def query(self) -> str:
        """The query as it was encoded, without the question mark."""
        return urlsplit(self.target).query

    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


class HungUp(Exception):
    """Raised by a reply that ends by closing the socket on its peer."""


@dataclass
class Exchange:
    """One request and the socket that its reply goes to."""

    request: Request
    writer: asyncio.StreamWriter
    bytes_sent: int = 0

    async def send(self, data: bytes) -> None:
        """Writes raw bytes of the reply."""
        self.writer.write(data)
        await self.writer.drain()
        self.bytes_sent += len(data)

    async def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Writes the status line and the headers."""
        lines = [f"HTTP/1.1 {status} -", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        await self.send("\r\n".join(lines).encode("latin-1"))

    async def whole(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Writes a reply with a known length."""
        await self.head(status, {"Content-Length": str(len(body)), **headers})
        await self.send(body)

    async def chunk(self, data: bytes) -> None:
        """Writes one chunk of a chunked reply; an empty one ends it."""
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")


class HttpFarSide(Listener):
    """Logs each request and each hang-up; a subclass says what is replied."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Log[Request] = Log("request")
        self.hang_ups: Log[Request] = Log("disconnect")

    async def reply(self, exchange: Exchange) -> None:
        """Writes the reply to one request. It is cancelled when the peer hangs up."""
        raise NotImplementedError

    @property
    def origin(self) -> str:
        """Where it listens, as "http://127.0.0.1:port"."""
        return f"http://{self.address}"

    async def request(self, number: int = 1, *, within: float = PATIENCE_SECONDS) -> Request:
        """The request of this number, counted from 1, as soon as it came."""
        return await self.requests.at(number, within=within)

    async def disconnected(self, number: int = 1, *, within: float = PATIENCE_SECONDS) -> Request:
        """The request whose peer hung up before its reply was whole: the first such, or the one of this number."""
        return await self.hang_ups.at(number, within=within)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection, one after the other."""
        while (request := await _read_request(reader)) is not None:
            self.requests.append(request)
            if not await self._exchange(Exchange(request, writer), reader):
                return

    async def _exchange(self, exchange: Exchange, reader: asyncio.StreamReader) -> bool:
        """Makes one reply; false when the connection is over, whoever ended it."""
        reply = asyncio.create_task(self.reply(exchange))
        gone = asyncio.create_task(end_of(reader))
        try:
            await asyncio.wait({reply, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                self.hang_ups.append(exchange.request)
                return False
            try:
                await reply
            except HungUp:
                return False
            except ConnectionError:
                self.hang_ups.append(exchange.request)
                return False
            return True
        finally:
            for task in (reply, gone):
                task.cancel()
            await asyncio.gather(reply, gone, return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection; None at its end."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    start, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    method, target, _ = start.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    try:
        body = await _read_body(reader, headers)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Request(method, target, headers, body)


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readline()
    return body
