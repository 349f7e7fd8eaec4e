"""Server reflection, version 1 or 1alpha: the files that describe a service, asked for over its own channel."""

from collections.abc import Iterable, Mapping, Sequence

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection_pb2

# What is taken of a server's description at most.
MAX_FILES = 1000
MAX_BYTES = 4 * 2**20
# Both versions have the same messages.
_METHODS = tuple(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha"))


class MethodUnknown(Exception):
    """It is not known how to call the method, so nothing was called; the message says why."""


async def describe(
    channel: grpc.aio.Channel, service: str, headers: Mapping[str, str]
) -> Sequence[FileDescriptorProto]:
    """The service's file with all that it imports. Unbounded in time: the caller's limit ends it."""
    for method in _METHODS:
        try:
            return await _Asking(channel, method, headers).files(service)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise MethodUnknown(f"the server's reflection answered {error.code().name}") from None
    raise MethodUnknown("the server has no reflection, and the tool has no descriptor set")


class _Asking:
    """One stream of questions."""

    def __init__(self, channel: grpc.aio.Channel, method: str, headers: Mapping[str, str]) -> None:
        ask = channel.stream_stream(
            method,
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        self._call = ask(metadata=tuple(headers.items()))
        self._files: dict[str, FileDescriptorProto] = {}
        self._bytes = 0

    async def files(self, service: str) -> Sequence[FileDescriptorProto]:
        """The service's file and all below it."""
        try:
            await self._ask(reflection_pb2.ServerReflectionRequest(file_containing_symbol=service))
            while missing := self._missing():
                await self._ask(reflection_pb2.ServerReflectionRequest(file_by_filename=missing))
            return list(self._files.values())
        finally:
            self._call.cancel()

    async def _ask(self, request: reflection_pb2.ServerReflectionRequest) -> None:
        await self._call.write(request)
        response = await self._call.read()
        if not isinstance(response, reflection_pb2.ServerReflectionResponse):
            raise MethodUnknown("the server's reflection broke off")
        if response.WhichOneof("message_response") != "file_descriptor_response":
            raise MethodUnknown("the server's reflection does not know the service or one of its files")
        self._take(response.file_descriptor_response.file_descriptor_proto)

    def _take(self, serialized: Iterable[bytes]) -> None:
        before = len(self._files)
        for each in serialized:
            self._bytes += len(each)
            if self._bytes > MAX_BYTES or len(self._files) >= MAX_FILES:
                raise MethodUnknown("the server's description is too large")
            try:
                file = FileDescriptorProto.FromString(each)
            except DecodeError:
                raise MethodUnknown("the server's description is malformed") from None
            self._files.setdefault(file.name, file)
        if len(self._files) == before:
            raise MethodUnknown("the server's reflection repeats itself")

    def _missing(self) -> str:
        imported = (name for file in self._files.values() for name in file.dependency)
        return next((name for name in imported if name not in self._files), "")
