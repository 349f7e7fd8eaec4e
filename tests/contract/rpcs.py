"""Any RPC of the contract by its name, called as anybody, with whatever came of it as one comparable value."""

import asyncio
import importlib
import pkgutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import turnkeeper.v1
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from turnkeeper.wire.errors import ErrorDetail

PATIENCE_SECONDS = 20.0
TRIES = 5


def _services() -> list[ServiceDescriptor]:
    names = [found.name for found in pkgutil.iter_modules(turnkeeper.v1.__path__) if found.name.endswith("_pb2")]
    modules = [importlib.import_module(f"turnkeeper.v1.{name}") for name in sorted(names)]
    return [service for module in modules for service in module.DESCRIPTOR.services_by_name.values()]


RPCS: dict[str, MethodDescriptor] = {
    f"{service.name}/{method.name}": method for service in _services() for method in service.methods
}
"""Every RPC of every service of the contract, for example "RunService/StartRun"."""


@dataclass(frozen=True)
class Outcome:
    """What a call came to: everything that its caller can see of it."""

    code: str
    responses: tuple[Message, ...] = ()
    reason: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    """The field violations: path and description."""
    text: str = ""
    retry_after: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return self.code == "OK"

    @property
    def paths(self) -> list[str]:
        """The fields that were refused."""
        return [path for path, _ in self.fields]

    @property
    def refusal(self) -> tuple[str, str, dict[str, str]]:
        """Code, reason and metadata."""
        return self.code, self.reason, dict(self.metadata)


class Site:
    """Calls both services of one pair over one channel each."""

    def __init__(self, session_address: str, runner_address: str) -> None:
        self._sessions = grpc.aio.insecure_channel(session_address)
        self._runner = grpc.aio.insecure_channel(runner_address)

    async def close(self) -> None:
        """Closes the channels."""
        await self._sessions.close()
        await self._runner.close()

    async def call(
        self, rpc: str, requests: Sequence[Message | bytes], token: str | None, *, keep_open: bool = False
    ) -> Outcome:
        """Calls with these requests (one, but for a stream of them; bytes are sent as they are).

        A further request of a stream is sent after a response. `keep_open` leaves the stream open, so that only the
        server can end the call.
        """
        bearer = None if token is None else (("authorization", f"Bearer {token}"),)
        for _ in range(TRIES):
            outcome = await self._outcome(rpc, requests, bearer, keep_open)
            # Every answer of the services has a reason. This one is made up by grpc.aio, when a call ends while a
            # message is being written to it; what the server said is lost.
            if (outcome.code, outcome.reason) != ("INTERNAL", ""):
                break
        return outcome

    async def _outcome(self, rpc: str, requests: Sequence[Message | bytes], bearer: Any, keep_open: bool) -> Outcome:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return Outcome("OK", tuple(await self._responses(RPCS[rpc], requests, bearer, keep_open)))
        except grpc.aio.AioRpcError as error:
            detail = ErrorDetail.of(error)
            return Outcome(
                code=detail.code.name,
                reason=detail.reason,
                metadata=tuple(sorted(detail.metadata.items())),
                fields=tuple((each.field, each.description) for each in detail.fields),
                text=error.details() or "",
                retry_after=detail.retry_after,
            )

    async def _responses(
        self, rpc: MethodDescriptor, requests: Sequence[Message | bytes], bearer: Any, keep_open: bool
    ) -> list[Message]:
        path = f"/{rpc.containing_service.full_name}/{rpc.name}"
        channel = self._runner if rpc.containing_service.name == "RunnerService" else self._sessions
        codecs: Any = {
            "request_serializer": _bytes,
            "response_deserializer": GetMessageClass(rpc.output_type).FromString,
        }
        if rpc.client_streaming:
            stream = channel.stream_stream(path, **codecs)(metadata=bearer)
            responses: list[Any] = []
            with suppress(asyncio.InvalidStateError):  # reading says how the call ended
                await stream.write(requests[0])
                for each in requests[1:]:
                    responses.append(await stream.read())  # the call has begun, or has failed already
                    await stream.write(each)
                if not keep_open:
                    await stream.done_writing()
            while (response := await stream.read()) is not grpc.aio.EOF:
                responses.append(response)
            return responses
        [request] = requests
        if rpc.server_streaming:
            return [response async for response in channel.unary_stream(path, **codecs)(request, metadata=bearer)]
        return [await channel.unary_unary(path, **codecs)(request, metadata=bearer)]


def _bytes(request: Message | bytes) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()
