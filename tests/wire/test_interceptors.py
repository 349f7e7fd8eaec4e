"""What a servicer gets, and what a call leaves behind when it ends early (SPEC 1.1, 1.4, 1.6, 11.2)."""

import asyncio
import dataclasses
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import structlog
from turnkeeper.v1 import (
    error_reason_pb2,
    identity_service_pb2,
    run_event_pb2,
    run_service_pb2,
    runner_service_pb2,
    session_service_pb2,
    turn_event_pb2,
    turn_service_pb2,
)
from turnkeeper.v1.identity_service_pb2_grpc import IdentityServiceStub
from turnkeeper.v1.run_service_pb2_grpc import RunServiceStub
from turnkeeper.v1.runner_service_pb2_grpc import RunnerServiceStub
from turnkeeper.v1.session_service_pb2_grpc import SessionServiceStub
from turnkeeper.v1.turn_service_pb2_grpc import TurnServiceStub
from turnkeeper.wire import errors
from turnkeeper.wire.context import Call, RunClaims, TokenKind
from turnkeeper.wire.errors import Refused

from tests.wire.conftest import IDENTITY, RUN, RUNNER, SESSION, TURN, Wire, bearer

ID = "0199e0d0-1111-7222-8333-4444444444aa"


class Servicer:
    """Every method that the tests here call; it keeps the calls it got."""

    def __init__(self) -> None:
        self.calls: list[Call | None] = []
        self.requests: list[Any] = []
        self.entered = asyncio.Event()
        self.left = asyncio.Event()
        self.how = ""


class Sessions(Servicer):
    async def CreateSession(
        self, request: session_service_pb2.CreateSessionRequest, call: Call
    ) -> session_service_pb2.CreateSessionResponse:
        self.calls.append(call)
        self.requests.append(request)
        return session_service_pb2.CreateSessionResponse()

    async def GetSession(
        self, request: session_service_pb2.GetSessionRequest, call: Call
    ) -> session_service_pb2.GetSessionResponse:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.how = "cancelled"
            raise
        finally:
            self.left.set()
        raise AssertionError


class Runs(Servicer):
    async def WatchRun(
        self, request: run_service_pb2.WatchRunRequest, call: Call
    ) -> AsyncIterator[run_service_pb2.WatchRunResponse]:
        self.calls.append(call)
        try:
            sequence = request.after_sequence
            while sequence < 10**9:
                sequence += 1
                self.entered.set()
                if sequence == 3:
                    raise Refused(error_reason_pb2.ERROR_REASON_CURSOR_EXPIRED, metadata={"first_sequence": "9"})
                event = run_event_pb2.RunEvent(run_id="x" * (sequence > 3) * 10_000, sequence=sequence)
                yield run_service_pb2.WatchRunResponse(event=event)
        finally:
            self.left.set()


class Runner(Servicer):
    async def ExecuteTurn(
        self, requests: AsyncIterator[runner_service_pb2.ExecuteTurnRequest], call: Call
    ) -> AsyncIterator[runner_service_pb2.ExecuteTurnResponse]:
        try:
            async for request in requests:
                self.requests.append(request)
                event = turn_event_pb2.TurnEvent(number=len(self.requests))
                yield runner_service_pb2.ExecuteTurnResponse(event=event)
            # gRPC ends the requests of a cancelled call as if they were complete; the cancellation comes right after.
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.how = "cancelled"
            raise
        finally:
            self.left.set()


class Turns(Servicer):
    async def ReportTurnStopped(
        self, request: turn_service_pb2.ReportTurnStoppedRequest, call: Call
    ) -> turn_service_pb2.ReportTurnStoppedResponse:
        self.calls.append(call)
        return turn_service_pb2.ReportTurnStoppedResponse()


class Identity(Servicer):
    async def GetVerificationKeys(
        self, request: identity_service_pb2.GetVerificationKeysRequest, call: None
    ) -> identity_service_pb2.GetVerificationKeysResponse:
        self.calls.append(call)
        return identity_service_pb2.GetVerificationKeysResponse(jwks_json="{}")


@pytest.mark.spec("1.1")
async def test_a_servicer_gets_one_immutable_context(wire: Wire) -> None:
    servicer = Sessions()
    trace = uuid.uuid4().hex
    token = wire.issuer.token(locale="de-AT", scopes=["sessions:write", "admin"], roles=["ops"])
    async with wire.serving({SESSION: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        metadata = (*bearer(token), ("traceparent", f"00-{trace}-0123456789abcdef-01"))
        stub, request = SessionServiceStub(channel), session_service_pb2.CreateSessionRequest()
        await stub.CreateSession(request, metadata=metadata, timeout=30)
        await stub.CreateSession(request, metadata=(*bearer(token), ("traceparent", "nonsense")))
    first, second = servicer.calls
    assert first is not None
    assert second is not None
    context = first.context
    assert (context.tenant_id, context.user_id, context.roles) == ("acme", "ada", ("ops",))
    assert (context.scopes, context.kind, context.run) == (
        frozenset({"sessions:write", "admin"}),
        TokenKind.USER,
        None,
    )
    assert (context.trace_id, context.locale) == (trace, "de-AT")
    assert context.deadline == pytest.approx(time.time() + 30, abs=5)
    assert first.remaining() == pytest.approx(30, abs=5)
    assert (second.context.deadline, second.remaining()) == (None, None)
    assert context.call_id != second.context.call_id
    assert second.context.trace_id not in (trace, "nonsense")
    assert first.credential.reveal() == token
    assert token not in repr(first)
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.tenant_id = "other"  # type: ignore[misc]
    with pytest.raises(Refused, match="TOKEN_KIND_REFUSED"):
        context.require_run()


@pytest.mark.spec("1.2")
async def test_a_run_token_brings_its_attempt(wire: Wire) -> None:
    servicer = Turns()
    async with wire.serving({TURN: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        request = turn_service_pb2.ReportTurnStoppedRequest()
        await TurnServiceStub(channel).ReportTurnStopped(request, metadata=bearer(wire.run_token(attempt=4)))
    [call] = servicer.calls
    assert call is not None
    assert call.context.require_run() == RunClaims(str(uuid.UUID(int=1)), str(uuid.UUID(int=2)), 4)


@pytest.mark.spec("1.1", "1.6")
async def test_identity_never_comes_from_metadata(wire: Wire) -> None:
    servicer = Sessions()
    forged = [(name, "mallory") for name in ("tenant_id", "tenant-id", "x-user-id", "user", "sub", "roles", "scope")]
    async with wire.serving({SESSION: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        request = session_service_pb2.CreateSessionRequest(name="mallory")
        await SessionServiceStub(channel).CreateSession(request, metadata=(*bearer(wire.issuer.token()), *forged))
    [call] = servicer.calls
    assert call is not None
    assert "mallory" not in repr(call.context)


@pytest.mark.spec("1.4")
async def test_a_trace_id_opens_nothing(wire: Wire) -> None:
    servicer = Sessions()
    async with wire.serving({SESSION: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await SessionServiceStub(channel).CreateSession(
                session_service_pb2.CreateSessionRequest(),
                metadata=(("traceparent", f"00-{uuid.uuid4().hex}-0123456789abcdef-01"),),
            )
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert servicer.calls == []


@pytest.mark.spec("11.1", "11.2")
async def test_a_servicer_never_sees_a_request_that_is_not_in_order(wire: Wire) -> None:
    servicer = Sessions()
    async with wire.serving({SESSION: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        stub = SessionServiceStub(channel)
        metadata = bearer(wire.issuer.token())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CreateSession(session_service_pb2.CreateSessionRequest(name="a\x00"), metadata=metadata)
        assert [field.field for field in errors.ErrorDetail.of(caught.value).fields] == ["name"]
        await stub.CreateSession(session_service_pb2.CreateSessionRequest(name=" b "), metadata=metadata)
    assert [request.name for request in servicer.requests] == ["b"]


@pytest.mark.spec("1.1")
async def test_a_public_method_has_no_caller(wire: Wire) -> None:
    servicer = Identity()
    async with wire.serving({IDENTITY: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        request = identity_service_pb2.GetVerificationKeysRequest()
        for metadata in ((), bearer("nonsense")):
            assert (
                await IdentityServiceStub(channel).GetVerificationKeys(request, metadata=metadata)
            ).jwks_json == "{}"
    assert servicer.calls == [None, None]


async def test_a_cancelled_call_reaches_its_servicer_as_a_cancellation(wire: Wire) -> None:
    servicer = Sessions()
    async with wire.serving({SESSION: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        request = session_service_pb2.GetSessionRequest(session_id=ID)
        with structlog.testing.capture_logs() as logs:
            call = SessionServiceStub(channel).GetSession(request, metadata=bearer(wire.issuer.token()))
            await servicer.entered.wait()
            call.cancel()
            await servicer.left.wait()
        assert servicer.how == "cancelled"
    assert [line["code"] for line in logs if line["event"] == "call"] == ["CANCELLED"]


async def test_a_deadline_reaches_its_servicer_too(wire: Wire) -> None:
    servicer = Sessions()
    async with wire.serving({SESSION: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        request = session_service_pb2.GetSessionRequest(session_id=ID)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await SessionServiceStub(channel).GetSession(request, metadata=bearer(wire.issuer.token()), timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await servicer.left.wait()
    assert servicer.how == "cancelled"


@pytest.mark.spec("11.2")
async def test_a_stream_can_end_in_a_refusal(wire: Wire) -> None:
    servicer = Runs()
    async with wire.serving({RUN: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        call = RunServiceStub(channel).WatchRun(
            run_service_pb2.WatchRunRequest(run_id=ID), metadata=bearer(wire.issuer.token())
        )
        got = [await call.read(), await call.read()]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert [each.event.sequence for each in got if isinstance(each, run_service_pb2.WatchRunResponse)] == [1, 2]
    assert (errors.reason(caught.value), errors.metadata(caught.value)) == ("CURSOR_EXPIRED", {"first_sequence": "9"})


@pytest.mark.parametrize("reads", [1, 50])
async def test_a_stream_whose_reader_leaves_is_closed_at_once(wire: Wire, reads: int) -> None:
    servicer = Runs()
    async with wire.serving({RUN: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        request = run_service_pb2.WatchRunRequest(run_id=ID, after_sequence=3)
        call = RunServiceStub(channel).WatchRun(request, metadata=bearer(wire.issuer.token()))
        for _ in range(reads):
            await call.read()
        call.cancel()
        async with asyncio.timeout(5):
            await servicer.left.wait()


class Held(Runs):
    """Keeps a reference to its stream, as a traceback or a task may: the garbage collector never comes to it."""

    def WatchRun(
        self, request: run_service_pb2.WatchRunRequest, call: Call
    ) -> AsyncIterator[run_service_pb2.WatchRunResponse]:
        self.held = super().WatchRun(request, call)
        return self.held


async def test_a_stream_is_closed_also_when_somebody_holds_it(wire: Wire) -> None:
    servicer = Held()
    async with wire.serving({RUN: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        request = run_service_pb2.WatchRunRequest(run_id=ID, after_sequence=3)
        call = RunServiceStub(channel).WatchRun(request, metadata=bearer(wire.issuer.token()))
        await call.read()
        call.cancel()
        async with asyncio.timeout(5):
            await servicer.left.wait()


@pytest.mark.spec("1.2", "11.1")
async def test_each_request_of_a_stream_is_checked(wire: Wire) -> None:
    servicer = Runner()
    async with wire.serving({RUNNER: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        call = RunnerServiceStub(channel).ExecuteTurn(metadata=bearer(wire.run_token()))
        good = runner_service_pb2.TurnStart(config_json="{}", session_id=ID.upper())
        await call.write(runner_service_pb2.ExecuteTurnRequest(start=good))
        answer = await call.read()
        assert isinstance(answer, runner_service_pb2.ExecuteTurnResponse)
        assert answer.event.number == 1
        await call.write(runner_service_pb2.ExecuteTurnRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert [field.field for field in errors.ErrorDetail.of(caught.value).fields] == ["body"]
        await servicer.left.wait()
    assert [request.start.session_id for request in servicer.requests] == [ID]


async def test_a_cancelled_bidi_call_cancels_its_servicer(wire: Wire) -> None:
    servicer = Runner()
    async with wire.serving({RUNNER: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        call = RunnerServiceStub(channel).ExecuteTurn(metadata=bearer(wire.run_token()))
        start = runner_service_pb2.TurnStart(config_json="{}")
        await call.write(runner_service_pb2.ExecuteTurnRequest(start=start))
        await call.read()
        call.cancel()
        await servicer.left.wait()
    assert servicer.how == "cancelled"


@pytest.mark.spec("1.1")
async def test_one_log_line_per_call_without_secrets(wire: Wire) -> None:
    token = wire.issuer.token(user="ada-the-user")
    with structlog.testing.capture_logs() as logs:
        async with wire.serving({SESSION: Sessions()}) as server, grpc.aio.insecure_channel(server.address) as channel:
            stub = SessionServiceStub(channel)
            await stub.CreateSession(session_service_pb2.CreateSessionRequest(name="quiet"), metadata=bearer(token))
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.ListSessions(session_service_pb2.ListSessionsRequest(), metadata=bearer(token))
    lines = [line for line in logs if line["event"] == "call"]
    assert [(line["method"].split("/")[-1], line["code"], line["reason"]) for line in lines] == [
        ("CreateSession", "OK", ""),
        ("ListSessions", "UNIMPLEMENTED", "UNIMPLEMENTED"),
    ]
    assert set(lines[0]) == {"event", "log_level", "method", "code", "reason", "ms", "call_id"}
    assert not any(word in repr(logs) for word in (token, "ada-the-user", "quiet", "acme"))


async def test_calls_at_once_keep_their_own_callers(wire: Wire) -> None:
    servicer = Sessions()
    async with wire.serving({SESSION: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        stub = SessionServiceStub(channel)
        tokens = {
            f"{tenant}-{n}": wire.issuer.token(tenant=tenant, user=f"{tenant}-{n}")
            for tenant in "ab"
            for n in range(50)
        }
        await asyncio.gather(
            *(
                stub.CreateSession(session_service_pb2.CreateSessionRequest(name=user), metadata=bearer(token))
                for user, token in tokens.items()
            )
        )
    pairs = [(request.name, call) for request, call in zip(servicer.requests, servicer.calls, strict=True)]
    assert len(pairs) == 100
    for name, call in pairs:
        assert call is not None
        assert (call.context.user_id, call.context.tenant_id) == (name, name[0])
        assert call.credential.reveal() == tokens[name]


@pytest.mark.spec("11.2")
@pytest.mark.parametrize("junk", [b"\xff\xff\xff", b"\x0a\x02\xc3\x28"])  # no message; a text that is no UTF-8
@pytest.mark.parametrize(("service", "method"), [("SessionService", "CreateSession"), ("RunnerService", "ExecuteTurn")])
async def test_bytes_that_are_no_message_are_refused_in_our_words(
    wire: Wire, junk: bytes, service: str, method: str
) -> None:
    async with (
        wire.serving({SESSION: Sessions(), RUNNER: Runner()}) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        raw: Any = channel
        path = f"/turnkeeper.v1.{service}/{method}"
        scopes = ["sessions:write", "runner:invoke"]
        for token, reason in ((wire.issuer.token(scopes=scopes), "INVALID_FIELD"), ("x", "UNAUTHENTICATED")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await raw.stream_unary(path)(iter([junk]), metadata=bearer(token))
            assert errors.reason(caught.value) == reason
