"""The HTTP client of a model's service: however odd its answers are, they cost bounded memory and time."""

from collections.abc import AsyncIterator

import httpx2
from openai import DefaultAsyncHttpxClient

CONNECT_SECONDS = 10.0
# Nobody is shown an error's body; the SDK reads it whole all the same.
MAX_ERROR_BYTES = 64 * 2**10
# One event of the stream, and so one line of it. Far above any that a model's service sends.
MAX_EVENT_BYTES = 4 * 2**20
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")


class BrokenStream(ValueError):
    """The service sent what is no stream of events that can be read."""


def http_client() -> httpx2.AsyncClient:
    """A client as the SDK's own, for services that are not trusted to send little."""
    return DefaultAsyncHttpxClient(
        # The limits of a call are whole ones, kept by the harness: one per read is stretched by a peer that drips.
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        # A few bytes of a compressed answer may be many.
        headers={"Accept-Encoding": "identity"},
        event_hooks={"response": [_guard]},
    )


async def _guard(response: httpx2.Response) -> None:
    """Sees each answer before its body is read."""
    # The SDK would decode an error's body by the charset that the service names, whatever codec that is and costs.
    response.encoding = "utf-8"
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        raise TypeError("the answer to an asynchronous request has an asynchronous stream")
    coding = response.headers.pop("Content-Encoding", "identity")
    if response.is_success:
        response.stream = _Events(response.stream, coding)
    else:
        response.stream = _ErrorBody(response.stream)


class _Guarded(httpx2.AsyncByteStream):
    """A body; closing it closes the connection, unless it was read whole."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def aclose(self) -> None:
        await self._stream.aclose()


class _ErrorBody(_Guarded):
    """No more than the beginning of an error's body."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_ERROR_BYTES
        async for chunk in self._stream:
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return


class _Events(_Guarded):
    """A stream of events, each within the limit: the SDK gathers one for as long as no blank line comes."""

    def __init__(self, stream: httpx2.AsyncByteStream, coding: str) -> None:
        super().__init__(stream)
        self._coding = coding

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._coding != "identity":
            raise BrokenStream("the stream is compressed, which was not asked for")
        size, before = 0, b""
        async for chunk in self._stream:
            seen = before + chunk
            end = max(seen.rfind(blank) for blank in _BLANK_LINES)
            size = len(seen) - end if end >= 0 else size + len(chunk)
            if size > MAX_EVENT_BYTES:
                raise BrokenStream(f"an event is longer than {MAX_EVENT_BYTES} bytes")
            before = seen[-2:]
            yield chunk
