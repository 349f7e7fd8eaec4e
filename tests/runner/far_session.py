"""A session service that does what a test says: it logs what a runner reports, and answers by script.

Only what a runner calls is here. What a test wants to be refused or held it puts in front with `before`.
"""

import asyncio
import json
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, Self

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status
from joserfc import jwt
from joserfc.jwk import KeySet, OKPKey
from turnkeeper.v1 import (
    identity_service_pb2,
    runner_service_pb2,
    session_pb2,
    session_service_pb2,
    turn_event_pb2,
    turn_service_pb2,
)
from turnkeeper.v1.runner_service_pb2 import ExecuteTurnRequest, Lease, LeaseRenewed, TurnStart
from turnkeeper.v1.turn_event_pb2 import TurnEvent
from turnkeeper.wire.errors import Refused, to_status

from tests.far.log import Log
from tests.fixtures.client import Client

SERVICES = (
    turn_service_pb2.DESCRIPTOR.services_by_name["TurnService"],
    session_service_pb2.DESCRIPTOR.services_by_name["SessionService"],
    identity_service_pb2.DESCRIPTOR.services_by_name["IdentityService"],
)

Before = Callable[[Any], Awaitable[None]]


class FarSession:
    """Serves on a free port as long as its context lasts."""

    def __init__(self) -> None:
        self.key = OKPKey.generate_key("Ed25519", {"kid": "session-1", "use": "sig", "alg": "Ed25519"})
        self.calls: Log[str] = Log("call")
        self.received: defaultdict[str, Log[Any]] = defaultdict(lambda: Log("request"))
        self.time_left: defaultdict[str, Log[float]] = defaultdict(lambda: Log("deadline"))
        self.before: dict[str, Before] = {}
        self.turn_context = turn_service_pb2.ResolveTurnContextResponse(outcome=turn_service_pb2.RESOLVE_OUTCOME_OK)
        self.history: list[session_pb2.Message] = []
        self.recorded: dict[str, turn_service_pb2.RecordedToolResult] = {}
        self._server = grpc.aio.server()

    async def __aenter__(self) -> Self:
        for service in SERVICES:
            handlers = {
                method.name: grpc.unary_unary_rpc_method_handler(
                    getattr(self, method.name),
                    request_deserializer=GetMessageClass(method.input_type).FromString,
                    response_serializer=GetMessageClass(method.output_type).SerializeToString,
                )
                for method in service.methods
                if hasattr(self, method.name)
            }
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    def run_token(self, *, attempt: int = 1, expires_in: float = 60, **claims: Any) -> str:
        """A run token, as the real service mints it."""
        now = int(time.time())
        given = {
            "iss": "turnkeeper-session-service",
            "aud": "turnkeeper-turn",
            "sub": "ada",
            "tenant_id": "acme",
            "roles": [],
            "scope": "runs:write",
            "iat": now,
            "exp": int(now + expires_in),
            "session_id": str(uuid.uuid4()),
            "run_id": str(uuid.uuid4()),
            "attempt": attempt,
            **claims,
        }
        header = {"alg": "Ed25519", "kid": "session-1", "typ": "run+jwt"}
        return jwt.encode(header, given, self.key, algorithms=["Ed25519"])

    async def _take(self, method: str, request: Any, context: Any) -> None:
        self.calls.append(method)
        self.received[method].append(request)
        self.time_left[method].append(context.time_remaining())
        if method in self.before:
            try:
                await self.before[method](request)
            except Refused as error:
                await context.abort_with_status(rpc_status.to_status(to_status(error)))

    async def GetVerificationKeys(self, request: Any, context: Any) -> Any:
        keys = KeySet([self.key]).as_dict(private=False)
        return identity_service_pb2.GetVerificationKeysResponse(jwks_json=json.dumps(keys))

    async def BeginTurn(self, request: Any, context: Any) -> Any:
        await self._take("BeginTurn", request, context)
        return turn_service_pb2.BeginTurnResponse(turn_number=1)

    async def ResolveTurnContext(self, request: Any, context: Any) -> Any:
        await self._take("ResolveTurnContext", request, context)
        return self.turn_context

    async def BeginToolCall(self, request: Any, context: Any) -> Any:
        await self._take("BeginToolCall", request, context)
        key = f"key-of-{request.call_id}" if request.side_effect else ""
        return turn_service_pb2.BeginToolCallResponse(
            recorded_result=self.recorded.get(request.call_id), idempotency_key=key
        )

    async def FinishToolCall(self, request: Any, context: Any) -> Any:
        await self._take("FinishToolCall", request, context)
        return turn_service_pb2.FinishToolCallResponse()

    async def ReportTurnStopped(self, request: Any, context: Any) -> Any:
        await self._take("ReportTurnStopped", request, context)
        return turn_service_pb2.ReportTurnStoppedResponse()

    async def ListMessages(self, request: Any, context: Any) -> Any:
        await self._take("ListMessages", request, context)
        start = int(request.page_token or 0)
        end = start + min(request.page_size, 2)  # small pages, so that a runner must ask for more
        return session_service_pb2.ListMessagesResponse(
            messages=self.history[start:end], next_page_token=str(end) if end < len(self.history) else ""
        )


class Dispatch:
    """The dispatcher's end of one ExecuteTurn call: sends the start, answers what it is told to answer."""

    def __init__(
        self,
        client: Client,
        config_json: str,
        *,
        lease: float = 10.0,
        interval: float = 0.05,
        stores: bool = True,
        renews: bool = True,
        **call: Any,
    ) -> None:
        self.stores = stores
        self.renews = renews
        self.events: Log[TurnEvent] = Log("event")
        self._lease = lease
        self._start = TurnStart(
            config_json=config_json, turn=1, lease=Lease(duration=duration(lease), probe_interval=duration(interval))
        )
        self.call = client.runner.ExecuteTurn(**call)
        self.finished = asyncio.create_task(self._run())

    async def cancel(self) -> None:
        """Cancels the call, as a dispatcher does that must stop the turn."""
        self.call.cancel()
        await asyncio.wait({self.finished})

    async def code(self) -> grpc.StatusCode:
        """The status with which the call ended."""
        return await self.call.code()

    async def _run(self) -> None:
        try:
            await self.call.write(ExecuteTurnRequest(start=self._start))
            async for response in self.call:
                await self._take(response.event)
        except (grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            return

    async def _take(self, event: TurnEvent) -> None:
        if event.HasField("lease_probe"):
            if self.renews:
                renewed = LeaseRenewed(probe=event.lease_probe.probe, remaining=duration(self._lease))
                await self.call.write(ExecuteTurnRequest(lease_renewed=renewed))
            return
        self.events.append(event)
        if self.stores:
            stored = runner_service_pb2.EventsStored(number=event.number)
            await self.call.write(ExecuteTurnRequest(stored=stored))
            if event.HasField("turn_ended"):
                await self.call.done_writing()


def duration(seconds: float) -> Duration:
    """Seconds as a Duration."""
    return Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))


def bodies(events: "Log[TurnEvent] | list[turn_event_pb2.TurnEvent]") -> list[str]:
    """The kinds of the events, in order."""
    return [str(event.WhichOneof("body")) for event in events]
