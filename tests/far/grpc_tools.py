"""A gRPC tool server that is not ours: its own contract, server reflection, and a log of calls and cancellations."""

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer
from grpc_tools import protoc

from tests.far.gates import Gate
from tests.far.log import PATIENCE_SECONDS, Log

SERVICE = "far.billing.Billing"
CHARGE = f"{SERVICE}/Charge"


@cache
def descriptor_set() -> bytes:
    """The server's contract, with all imports."""
    includes = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        arguments = [f"-I{Path(__file__).parent}", f"-I{includes}", f"-o{out}", "--include_imports", "billing.proto"]
        assert protoc.main(["protoc", *arguments]) == 0
        return out.read_bytes()


@dataclass(frozen=True)
class GrpcCall:
    """One call as it came over the wire; the request as JSON values, the time that was left in seconds."""

    request: dict[str, Any]
    metadata: Mapping[str, str]
    time_left: float | None


class Abort(Exception):
    """Raised by a responder to end the call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str = "") -> None:
        super().__init__(code, details)
        self.code, self.details = code, details


Responder = Callable[[GrpcCall], dict[str, Any] | bytes]


class GrpcToolServer:
    """Answers Charge with what `respond` makes of the call: a response's JSON values, or its bytes.

    `versions` are those of the reflection that it has, "v1" and "v1alpha".
    """

    def __init__(self, *versions: str, secure: grpc.ServerCredentials | None = None) -> None:
        self.respond: Responder = lambda call: {"chargeId": "c-1", "amount": call.request.get("amount", "0")}
        self.gate: Gate | None = None
        self.calls: Log[GrpcCall] = Log("call")
        self.cancellations: Log[GrpcCall] = Log("cancellation")
        self.questions: Log[dict[str, str]] = Log("question")
        self._versions, self._secure = versions, secure
        self._pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(descriptor_set()).file:
            self._pool.AddSerializedFile(file.SerializeToString())
        self._server = grpc.aio.server()

    @property
    def target(self) -> str:
        """Where it listens, as a config names it."""
        return f"127.0.0.1:{self._port}"

    def hold(self) -> Gate:
        """From now on, calls wait at this gate."""
        self.gate = Gate("the reply of Charge")
        return self.gate

    async def call(self, number: int = 1, *, within: float = PATIENCE_SECONDS) -> GrpcCall:
        """The call of this number, counted from 1, as soon as it came."""
        return await self.calls.at(number, within=within)

    async def stop(self) -> None:
        """Goes away, also from under running calls."""
        await self._server.stop(0)

    async def __aenter__(self) -> Self:
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    SERVICE, {"Charge": grpc.unary_unary_rpc_method_handler(self._charge)}
                ),
                *(self._reflection(version) for version in self._versions),
            )
        )
        if self._secure is None:
            self._port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self._port = self._server.add_secure_port("127.0.0.1:0", self._secure)
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _charge(self, serialized: bytes, context: Any) -> bytes:
        method = self._pool.FindServiceByName(SERVICE).methods_by_name["Charge"]
        message = GetMessageClass(method.input_type).FromString(serialized)
        request = json_format.MessageToDict(message, descriptor_pool=self._pool)
        metadata = dict(context.invocation_metadata())
        call = GrpcCall(request, metadata, context.time_remaining())
        self.calls.append(call)
        try:
            if self.gate is not None:
                await self.gate.passage()
        except asyncio.CancelledError:
            self.cancellations.append(call)
            raise
        try:
            answer = self.respond(call)
        except Abort as abort:
            await context.abort(abort.code, abort.details)
        if isinstance(answer, bytes):
            return answer
        response = GetMessageClass(method.output_type)()
        json_format.ParseDict(answer, response, descriptor_pool=self._pool)
        return response.SerializeToString()

    def _reflection(self, version: str) -> grpc.GenericRpcHandler:
        servicer: Any = ReflectionServicer([SERVICE], self._pool)

        async def answer(requests: Any, context: Any) -> Any:
            self.questions.append(dict(context.invocation_metadata()))
            async for response in servicer.ServerReflectionInfo(requests, context):
                yield response

        handler = grpc.stream_stream_rpc_method_handler(
            answer,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(
            f"grpc.reflection.{version}.ServerReflection", {"ServerReflectionInfo": handler}
        )
