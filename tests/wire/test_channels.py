"""Channels repeat what is harmless, and nothing else, and leave a draining replica alone."""

import asyncio
import json
from collections import Counter

import grpc
import pytest
from turnkeeper.v1 import error_reason_pb2, session_service_pb2
from turnkeeper.v1.session_service_pb2_grpc import SessionServiceStub
from turnkeeper.wire.channels import open_channel, service_config
from turnkeeper.wire.context import Call
from turnkeeper.wire.errors import Refused
from turnkeeper.wire.policy import METHODS

from tests.wire.conftest import SESSION, Wire, bearer

ID = "0199e0d0-1111-7222-8333-4444444444aa"


class Shaky:
    """Refuses the first calls as a replica that stops does."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.calls: Counter[str] = Counter()

    def _reached(self, method: str) -> None:
        self.calls[method] += 1
        if self.calls[method] <= self.refusals:
            raise Refused(error_reason_pb2.ERROR_REASON_SHUTTING_DOWN)

    async def GetSession(
        self, request: session_service_pb2.GetSessionRequest, call: Call
    ) -> session_service_pb2.GetSessionResponse:
        self._reached("GetSession")
        return session_service_pb2.GetSessionResponse()

    async def CreateSession(
        self, request: session_service_pb2.CreateSessionRequest, call: Call
    ) -> session_service_pb2.CreateSessionResponse:
        self._reached("CreateSession")
        return session_service_pb2.CreateSessionResponse()


async def test_only_what_may_be_repeated_is(wire: Wire) -> None:
    servicer = Shaky(refusals=2)
    metadata = bearer(wire.issuer.token())
    async with wire.serving({SESSION: servicer}) as server, open_channel(server.address) as channel:
        stub = SessionServiceStub(channel)
        await stub.GetSession(session_service_pb2.GetSessionRequest(session_id=ID), metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CreateSession(session_service_pb2.CreateSessionRequest(), metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert servicer.calls == {"GetSession": 3, "CreateSession": 1}


def test_the_retry_policy_is_the_table() -> None:
    config = json.loads(json.dumps(service_config()))
    [method_config] = config["methodConfig"]
    retried = {f"/{name['service']}/{name['method']}" for name in method_config["name"]}
    assert retried == {method for method, access in METHODS.items() if access.idempotent}
    assert method_config["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
    assert not any(name in retried for name in METHODS if name.endswith(("/BeginToolCall", "/ExecuteTurn")))


@pytest.mark.spec("11.4")
async def test_calls_go_round_and_leave_a_draining_replica(wire: Wire) -> None:
    one, other = Shaky(0), Shaky(0)
    request, metadata = session_service_pb2.GetSessionRequest(session_id=ID), bearer(wire.issuer.token())
    async with (
        wire.serving({SESSION: one}) as first,
        wire.serving({SESSION: other}) as second,
        open_channel(f"ipv4:{first.address},{second.address}") as channel,
    ):
        stub = SessionServiceStub(channel)
        async with asyncio.timeout(10):
            while not (one.calls and other.calls):
                await stub.GetSession(request, metadata=metadata)
        await first.drain()
        alone = 0
        async with asyncio.timeout(10):
            while alone < 20:
                before = one.calls.total()
                await stub.GetSession(request, metadata=metadata)
                alone = alone + 1 if one.calls.total() == before else 0
