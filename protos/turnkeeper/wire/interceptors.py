"""What every call passes before a servicer sees it: who is it, may they, is the request in order (SPEC 1.1, 11).

A servicer's method never gets the gRPC context: it gets a `Call`, answers or raises, and this maps what it raised.
"""

import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError, Message
from grpc_status import rpc_status

from turnkeeper.v1 import error_reason_pb2
from turnkeeper.wire import edge, errors, policy
from turnkeeper.wire.context import Call, Credential, RequestContext
from turnkeeper.wire.errors import Refused
from turnkeeper.wire.tokens import Verified, Verifier

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], Awaitable["_Handler | None"]]

_Check: TypeAlias = Callable[[Any], Any]

_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/=-]+)", re.IGNORECASE)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_NO_TRACE = "0" * 32

_log = structlog.get_logger("turnkeeper.calls")


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Authenticates, authorises, validates, hands over a `Call`, maps errors and logs one line per call.

    One for each server: it keeps the handlers of the server that it works for.
    """

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._wrapped: dict[str, _Handler] = {}

    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "_Handler | None":
        """The handler of the method with everything above around it."""
        method = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return grpc.stream_stream_rpc_method_handler(_unknown_method)
            # Handlers never change, so each is wrapped once; the methods that exist bound the dictionary.
            wrapped = handler if policy.is_public_service(method) else self._wrap(method, handler)
            self._wrapped[method] = wrapped
        return wrapped

    def _wrap(self, method: str, handler: _Handler) -> _Handler:
        codecs = _lenient(handler.request_deserializer), handler.response_serializer
        if handler.request_streaming and handler.response_streaming:
            streamed = self._streamed(method, handler.stream_stream, _each_valid)
            return grpc.stream_stream_rpc_method_handler(streamed, *codecs)
        if handler.request_streaming:
            single = self._single(method, handler.stream_unary, _each_valid)
            return grpc.stream_unary_rpc_method_handler(single, *codecs)
        if handler.response_streaming:
            streamed = self._streamed(method, handler.unary_stream, _valid)
            return grpc.unary_stream_rpc_method_handler(streamed, *codecs)
        return grpc.unary_unary_rpc_method_handler(self._single(method, handler.unary_unary, _valid), *codecs)

    def _single(self, method: str, behaviour: Any, check: _Check) -> Callable[[Any, _Context], Awaitable[Any]]:
        async def handle(request: Any, context: _Context) -> Any:
            line = _CallLine(method)
            try:
                call = await self._admit(method, context, line)
                response = await behaviour(check(request), call)
            except Exception as error:
                await _abort(context, error, line)
            except asyncio.CancelledError as cancelled:
                await _cancelled(context, cancelled, line)
                raise
            line.write(grpc.StatusCode.OK)
            return response

        return handle

    def _streamed(self, method: str, behaviour: Any, check: _Check) -> Callable[[Any, _Context], AsyncIterator[Any]]:
        async def handle(request: Any, context: _Context) -> AsyncIterator[Any]:
            line = _CallLine(method)
            try:
                call = await self._admit(method, context, line)
                # Closed here, not by the garbage collector whenever it comes to a stream that its client dropped.
                async with aclosing(behaviour(check(request), call)) as responses:
                    async for response in responses:
                        yield response
            except Exception as error:
                await _abort(context, error, line)
            except GeneratorExit:
                line.write(grpc.StatusCode.CANCELLED)
                raise
            except asyncio.CancelledError as cancelled:
                await _cancelled(context, cancelled, line)
                raise
            line.write(grpc.StatusCode.OK)

        return handle

    async def _admit(self, method: str, context: _Context, line: "_CallLine") -> Call | None:
        access = policy.METHODS.get(method)
        if access is not None and access.public:
            return None
        metadata = [(str(key), value) for key, value in context.invocation_metadata() or ()]
        token = _bearer(metadata)
        verified = await self._verifier.verify(token)
        policy.authorise(access, verified.kind, verified.scopes)
        remaining: float | None = context.time_remaining()
        return Call(
            context=_request_context(verified, line.call_id, _trace_id(metadata), remaining),
            credential=Credential(token),
            expires=None if remaining is None else time.monotonic() + remaining,
        )


class _CallLine:
    """The one log line of a call. It names no user, no content and no credential."""

    def __init__(self, method: str) -> None:
        self.call_id = str(uuid.uuid4())
        self._method = method
        self._started = time.perf_counter()

    def write(self, code: grpc.StatusCode, reason: str = "") -> None:
        millis = round((time.perf_counter() - self._started) * 1000, 1)
        _log.info("call", method=self._method, code=code.name, reason=reason, ms=millis, call_id=self.call_id)


def _request_context(verified: Verified, call_id: str, trace_id: str, remaining: float | None) -> RequestContext:
    return RequestContext(
        call_id=call_id,
        trace_id=trace_id,
        tenant_id=verified.tenant_id,
        user_id=verified.user_id,
        roles=verified.roles,
        scopes=verified.scopes,
        locale=verified.locale,
        deadline=None if remaining is None else time.time() + remaining,
        kind=verified.kind,
        expire_time=verified.expire_time,
        run=verified.run,
    )


def _bearer(metadata: list[tuple[str, str | bytes]]) -> str:
    # With two values one of them would win by chance, and two parties could read two callers.
    values = [value for key, value in metadata if key == "authorization"]
    match = _BEARER.fullmatch(values[0]) if len(values) == 1 and isinstance(values[0], str) else None
    if match is None:
        raise Refused(error_reason_pb2.ERROR_REASON_UNAUTHENTICATED)
    return match[1]


def _trace_id(metadata: list[tuple[str, str | bytes]]) -> str:
    for key, value in metadata:
        match = _TRACEPARENT.fullmatch(value) if key == "traceparent" and isinstance(value, str) else None
        if match is not None and match[1] != _NO_TRACE:
            return match[1]
    return uuid.uuid4().hex


class _Malformed:
    """Stands for bytes that are no message, until the call is admitted and can be refused in our words."""


def _lenient(deserialise: Any) -> Callable[[bytes], Any]:
    def read(serialised: bytes) -> Any:
        try:
            return deserialise(serialised)
        except DecodeError:
            return _Malformed()

    return read


async def _each_valid(requests: AsyncIterator[Any]) -> AsyncIterator[Message]:
    async for request in requests:
        yield _valid(request)


def _valid(request: Any) -> Message:
    if not isinstance(request, Message):
        raise errors.invalid("", "the request is not a well-formed message")
    edge.validate(request)
    return request


async def _cancelled(context: _Context, cancelled: asyncio.CancelledError, line: _CallLine) -> None:
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        # Nobody cancelled the call: it is a servicer's own, which gRPC would leave without any answer.
        await _abort(context, cancelled, line)
    line.write(grpc.StatusCode.CANCELLED)


async def _abort(context: _Context, error: BaseException, line: _CallLine) -> NoReturn:
    # The abort itself raises: it stands outside every try of ours, so that nothing wraps or maps it a second time.
    status = errors.to_status(error)
    reason = errors.reason_name(error.reason) if isinstance(error, Refused) else "INTERNAL"
    grpc_status = rpc_status.to_status(status)
    line.write(grpc_status.code, reason)
    await context.abort_with_status(grpc_status)


async def _unknown_method(_requests: Any, context: _Context) -> AsyncIterator[bytes]:
    refused = Refused(error_reason_pb2.ERROR_REASON_UNIMPLEMENTED)
    await context.abort_with_status(rpc_status.to_status(errors.to_status(refused)))
    yield b""
