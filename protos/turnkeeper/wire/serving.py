"""Serves gRPC the same way for both services: where it may listen, health, reflection, a graceful stop (SPEC 11.4)."""

import asyncio
import ipaddress
import signal
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from turnkeeper.v1 import error_reason_pb2
from turnkeeper.wire.context import Call
from turnkeeper.wire.errors import Refused

_OPTIONS = (
    # On by default, it lets two servers share a port and each take half of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Our channels ping every 10 s; without this a server hangs up on them.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)


class ServingError(Exception):
    """The server can not, or must not, start as it was asked to. The message is for whoever started it."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen: a host ("unix:/path" for a socket file, then without a port) and a port, 0 for any free one.

    Without TLS only loopback and socket files are served, unless `insecure` says that it is meant.
    """

    host: str
    port: int = 0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False

    @classmethod
    def at(
        cls, address: str, tls_cert: Path | None = None, tls_key: Path | None = None, insecure: bool = False
    ) -> "Listen":
        """Reads "host:port", "[::1]:port" or "unix:/path"."""
        if address.startswith("unix:"):
            return cls(address, 0, tls_cert, tls_key, insecure)
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65_535:
            raise ServingError(f"not an address to listen on: {address!r} (host:port is needed)")
        return cls(host.removeprefix("[").removesuffix("]"), int(port), tls_cert, tls_key, insecure)

    def bind(self, server: grpc.aio.Server) -> str:
        """Binds the server and answers its address as a client would dial it."""
        credentials = self.credentials()
        host = f"[{self.host}]" if ":" in self.host and not self._is_socket_file else self.host
        address = self.host if self._is_socket_file else f"{host}:{self.port}"
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ServingError(f"cannot listen on {address}: is it in use?") from error
        return address if self._is_socket_file else f"{host}:{port}"

    @property
    def _is_socket_file(self) -> bool:
        return self.host.startswith("unix:")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it: loopback or a socket file."""
        if self._is_socket_file or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def credentials(self) -> grpc.ServerCredentials | None:
        """The server's TLS, None without; ServingError when it must not, or can not, be served that way."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ServingError("TLS needs both a certificate and its key")
        if self.tls_cert is not None and self.tls_key is not None:
            try:
                pair = self.tls_key.read_bytes(), self.tls_cert.read_bytes()
            except OSError as error:
                raise ServingError(f"cannot read the TLS certificate or key: {error}") from error
            return grpc.ssl_server_credentials([pair])
        if not self.is_local and not self.insecure:
            raise ServingError(
                f"refusing to serve {self.host} without TLS: give a certificate and its key, "
                "or say insecure if something in front of this server does TLS"
            )
        return None


def register(server: grpc.aio.Server, service: ServiceDescriptor, servicer: object) -> None:
    """Serves every method of `service`: those that `servicer` lacks answer UNIMPLEMENTED.

    A public method of the servicer that the service does not have is a mistake, and refused at once.
    """
    names = {method.name for method in service.methods}
    kind = type(servicer)
    public = {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}
    if strangers := sorted(public - names):
        raise ServingError(f"{service.full_name} has no {', '.join(strangers)}")
    handlers = {method.name: _handler(method, getattr(servicer, method.name, None)) for method in service.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


def _handler(method: MethodDescriptor, behaviour: Any) -> "grpc.RpcMethodHandler[Any, Any]":
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    make: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[method.client_streaming, method.server_streaming]
    missing = _missing_stream if method.server_streaming else _missing
    handler: grpc.RpcMethodHandler[Any, Any] = make(
        behaviour or missing,
        request_deserializer=request.FromString,
        response_serializer=response.SerializeToString,
    )
    return handler


async def _missing(_request: object, _call: Call | None) -> object:
    raise Refused(error_reason_pb2.ERROR_REASON_UNIMPLEMENTED)


async def _missing_stream(_request: object, _call: Call | None) -> AsyncIterator[object]:
    raise Refused(error_reason_pb2.ERROR_REASON_UNIMPLEMENTED)
    yield  # makes it a stream


class Server:
    """A server that is serving at `address`."""

    def __init__(self, server: grpc.aio.Server, address: str, health_servicer: health.aio.HealthServicer) -> None:
        self._server = server
        self._health = health_servicer
        self.address = address

    async def drain(self) -> None:
        """Says NOT_SERVING from now on, so that balanced clients go elsewhere; calls are still taken."""
        await self._health.enter_graceful_shutdown()

    def stop(self, grace: float) -> Awaitable[None]:
        """Takes no more calls, lets the running ones end for at most `grace` seconds, then cancels them."""
        return self._server.stop(grace)


def stop_event() -> asyncio.Event:
    """Set when the process is told to end, by SIGTERM or SIGINT; from now on neither ends it by itself."""
    stopping = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stopping.set)
    return stopping


@asynccontextmanager
async def serve(
    listen: Listen,
    servicers: Mapping[ServiceDescriptor, object],
    interceptor: grpc.aio.ServerInterceptor,
    grace: float,
) -> AsyncIterator[Server]:
    """Serves until the block ends, then drains and stops within `grace` seconds."""
    server = grpc.aio.server(interceptors=(interceptor,), options=_OPTIONS)
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    for service, servicer in servicers.items():
        register(server, service, servicer)
    names = [service.full_name for service in servicers]
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    address = listen.bind(server)
    await server.start()
    try:
        for name in ("", *names):
            await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        serving = Server(server, address, health_servicer)
        yield serving
        await serving.drain()
    finally:
        await server.stop(grace)
