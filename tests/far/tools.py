"""A tool server over HTTP, which logs what reaches it and can hold, break or delay a reply."""

import json
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.far.gates import Gate
from tests.far.http import Exchange, HttpFarSide, HungUp, Request


@dataclass(frozen=True)
class ToolReply:
    """One reply. With a `gate` it waits there before its first byte; with `hang_up` the socket is closed instead."""

    body: bytes = b"{}"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    gate: Gate | None = None
    hang_up: bool = False


def json_reply(value: Any, *, status: int = 200, gate: Gate | None = None) -> ToolReply:
    """A reply with a JSON body."""
    return ToolReply(json.dumps(value).encode(), status, {"Content-Type": "application/json"}, gate)


def text_reply(text: str, *, status: int = 200, gate: Gate | None = None) -> ToolReply:
    """A reply with a plain text body."""
    return ToolReply(text.encode(), status, {"Content-Type": "text/plain; charset=utf-8"}, gate)


Responder = Callable[[Request], ToolReply]


class ToolServer(HttpFarSide):
    """Replies by path: what was queued for it first, then what `respond` makes of the request.

    Unless a test sets `respond`, that is the request's own body, so that a test can see what a tool was given in what
    the model is told.
    """

    def __init__(self) -> None:
        super().__init__()
        self.respond: Responder = _echo
        self._queued: defaultdict[str, deque[ToolReply]] = defaultdict(deque)

    def queue(self, path: str, *replies: ToolReply) -> None:
        """Queues replies for the next requests to this path."""
        self._queued[path].extend(replies)

    def hold(self, path: str, reply: ToolReply | None = None) -> Gate:
        """Queues a reply for this path that waits at a gate, and gives the gate."""
        gate = Gate(f"the reply of {path}")
        given = reply or ToolReply()
        self.queue(path, ToolReply(given.body, given.status, given.headers, gate, given.hang_up))
        return gate

    def url(self, path: str) -> str:
        """The address of a path, as a tool's config needs it."""
        return self.origin + path

    def of(self, path: str) -> list[Request]:
        """The requests to this path so far."""
        return [request for request in self.requests if request.path == path]

    async def reply(self, exchange: Exchange) -> None:
        """Writes the next reply of the request's path."""
        queued = self._queued[exchange.request.path]
        reply = queued.popleft() if queued else self.respond(exchange.request)
        if reply.gate is not None:
            await reply.gate.passage()
        if reply.hang_up:
            raise HungUp
        await exchange.whole(reply.status, reply.body, reply.headers)


def _echo(request: Request) -> ToolReply:
    return ToolReply(request.body or b"{}", headers={"Content-Type": "application/json"})
