"""Where a server may listen, what it says of itself, and how it ends (SPEC 11.2, 11.4)."""

import asyncio
import datetime
import ipaddress
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from turnkeeper.v1 import session_service_pb2
from turnkeeper.v1.session_service_pb2_grpc import SessionServiceStub
from turnkeeper.wire import errors
from turnkeeper.wire.channels import open_channel
from turnkeeper.wire.context import Call
from turnkeeper.wire.interceptors import CallInterceptor
from turnkeeper.wire.serving import Listen, ServingError, register, serve

from tests.wire.conftest import RUN, SESSION, Wire, bearer

ID = "0199e0d0-1111-7222-8333-4444444444aa"


class Sessions:
    """GetSession answers when its gate is open."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()

    async def GetSession(
        self, request: session_service_pb2.GetSessionRequest, call: Call
    ) -> session_service_pb2.GetSessionResponse:
        self.entered.set()
        await self.gate.wait()
        return session_service_pb2.GetSessionResponse()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: a socket file's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="tk") as name:
        yield Path(name)


@pytest.fixture
def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = folder / "cert.pem", folder / "key.pem"
    cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_path, key_path


async def _bind(listen: Listen) -> str:
    server = grpc.aio.server()
    try:
        return listen.bind(server)
    finally:
        await server.stop(0)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "localhost:0", "127.9.9.9:0"])
async def test_loopback_needs_no_tls(address: str) -> None:
    host, _, port = (await _bind(Listen.at(address))).rpartition(":")
    assert host == address.rpartition(":")[0]
    assert int(port) > 0


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.0.0.1:0", "example.com:0", "127.0.0.1.example.com:0"])
async def test_anything_else_does(address: str) -> None:
    with pytest.raises(ServingError, match="without TLS"):
        await _bind(Listen.at(address))


async def test_unless_it_is_meant() -> None:
    assert await _bind(Listen.at("0.0.0.0:0", insecure=True))


async def test_tls_needs_both_files(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    for pair in ((cert, None), (None, key)):
        with pytest.raises(ServingError, match="both"):
            await _bind(Listen("127.0.0.1", 0, *pair))
    with pytest.raises(ServingError, match="cannot read"):
        await _bind(Listen("127.0.0.1", 0, cert, key.with_name("missing")))


@pytest.mark.parametrize("address", ["", "127.0.0.1", ":80", "127.0.0.1:x", "127.0.0.1:-1", "127.0.0.1:70000"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ServingError, match="not an address"):
        Listen.at(address)


async def test_a_port_is_not_shared(wire: Wire) -> None:
    async with wire.serving({}) as server:
        with pytest.raises(ServingError, match="in use"):
            await _bind(Listen.at(server.address))


async def test_a_call_over_tls(wire: Wire, certificate: tuple[Path, Path]) -> None:
    servicer = Sessions()
    servicer.gate.set()
    listen = Listen("127.0.0.1", 0, *certificate)
    async with (
        serve(listen, {SESSION: servicer}, CallInterceptor(wire.verifier), 1) as server,
        open_channel(server.address, tls_ca=certificate[0]) as channel,
        grpc.aio.insecure_channel(server.address) as plain,
    ):
        request, metadata = session_service_pb2.GetSessionRequest(session_id=ID), bearer(wire.issuer.token())
        await SessionServiceStub(channel).GetSession(request, metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError):
            await SessionServiceStub(plain).GetSession(request, metadata=metadata)


async def test_a_call_over_a_socket_file(wire: Wire, folder: Path) -> None:
    servicer = Sessions()
    servicer.gate.set()
    listen = Listen.at(f"unix:{folder}/s")
    async with (
        serve(listen, {SESSION: servicer}, CallInterceptor(wire.verifier), 1) as server,
        open_channel(server.address) as channel,
    ):
        request = session_service_pb2.GetSessionRequest(session_id=ID)
        await SessionServiceStub(channel).GetSession(request, metadata=bearer(wire.issuer.token()))


class Misspelt:
    async def GetSesion(self, request: object, call: object) -> object:
        return request


async def test_a_method_that_the_service_lacks_stops_the_start() -> None:
    with pytest.raises(ServingError, match="GetSesion"):
        register(grpc.aio.server(), SESSION, Misspelt())


@pytest.mark.spec("11.2")
@pytest.mark.parametrize("method", ["/turnkeeper.v1.SessionService/Nope", "/turnkeeper.v1.RunService/GetRun", "/x.Y/Z"])
async def test_an_unknown_method_says_so_in_our_words(wire: Wire, method: str) -> None:
    async with wire.serving({SESSION: Sessions()}) as server, grpc.aio.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _raw(channel, method)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert errors.reason(caught.value) == "UNIMPLEMENTED"


async def _raw(channel: Any, method: str) -> None:
    await channel.unary_unary(method)(b"")


async def _health(channel: grpc.aio.Channel, service: str) -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


@pytest.mark.spec("1.1", "11.4")
async def test_health_needs_no_token_and_ends_before_the_server(wire: Wire) -> None:
    async with wire.serving({SESSION: Sessions()}) as server, grpc.aio.insecure_channel(server.address) as channel:
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", SESSION.full_name):
            assert await _health(channel, service) == serving
        await server.drain()
        for service in ("", SESSION.full_name):
            assert await _health(channel, service) == not_serving


@pytest.mark.spec("1.1")
async def test_reflection_needs_no_token(wire: Wire) -> None:
    servicers = {SESSION: Sessions(), RUN: object()}
    async with wire.serving(servicers) as server, grpc.aio.insecure_channel(server.address) as channel:
        untyped: Any = channel
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(untyped)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        answer = await call.read()
    listed = {service.name for service in answer.list_services_response.service}
    assert {SESSION.full_name, RUN.full_name, "grpc.health.v1.Health"} <= listed


@pytest.mark.spec("11.4")
async def test_a_stop_lets_running_calls_end_and_takes_no_new_ones(wire: Wire) -> None:
    servicer = Sessions()
    request, metadata = session_service_pb2.GetSessionRequest(session_id=ID), bearer(wire.issuer.token())
    async with wire.serving({SESSION: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        running = SessionServiceStub(channel).GetSession(request, metadata=metadata)
        await servicer.entered.wait()
        stopping = asyncio.ensure_future(server.stop(30))
        await asyncio.sleep(0)
        async with grpc.aio.insecure_channel(server.address) as late:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await SessionServiceStub(late).GetSession(request, metadata=metadata)
        # CANCELLED when it came in the moment in which the port was closing.
        assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        servicer.gate.set()
        assert await running == session_service_pb2.GetSessionResponse()
        await stopping


@pytest.mark.spec("11.4")
async def test_a_call_that_outlives_the_grace_is_cancelled(wire: Wire) -> None:
    servicer = Sessions()
    request, metadata = session_service_pb2.GetSessionRequest(session_id=ID), bearer(wire.issuer.token())
    async with wire.serving({SESSION: servicer}, grace=0.1) as server:
        channel = grpc.aio.insecure_channel(server.address)
        running = SessionServiceStub(channel).GetSession(request, metadata=metadata)
        await servicer.entered.wait()
    with pytest.raises(grpc.aio.AioRpcError):
        await running
    await channel.close()
