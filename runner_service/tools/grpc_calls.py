"""gRPC tools: one unary call, to an allowed target, within its limit; its answer as bounded JSON (SPEC 7.10)."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from turnkeeper.v1 import run_pb2
from turnkeeper.wire.configs import Effect, GrpcMethod, ToolConfig

from runner_service.tools.descriptors import Descriptors
from runner_service.tools.headers import ToolHeaders
from runner_service.tools.json_form import NotItsForm, serialize, to_json
from runner_service.tools.model import ToolResult, failed
from runner_service.tools.outgoing import Outgoing, bounded, headers_for
from runner_service.tools.reflection import MethodUnknown
from runner_service.tools.targets import read_targets

CONNECT_SECONDS = 10.0
# A channel that failed before tries again within this time.
RECONNECT_SECONDS = 3.0
MAX_ANSWER_BYTES = 4 * 2**20
MAX_STATUS_BYTES = 2000
# An answer beyond this is turned into JSON beside the loop.
_SMALL = 64 * 1024
# Codes after which nobody knows whether the call took effect.
_OPEN = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
# In the words of gRPC itself: the answer came, so the call did take effect.
_TOO_LARGE = "larger than max"

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    # A call that may change something leaves once: neither retries nor a service config from DNS.
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    # No proxy of the environment may take part in a call.
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class GrpcTools:
    """Makes the calls of gRPC tools, over one channel per target for the life of the process."""

    def __init__(
        self, targets: Iterable[str], result_bytes: int, headers: ToolHeaders, tls_ca: Path | None = None
    ) -> None:
        """`targets` as in `read_targets`; `tls_ca` holds the authorities to trust, the system's when None."""
        self._targets = read_targets(targets)
        self._result_bytes = result_bytes
        self._headers = headers
        self._credentials = grpc.ssl_channel_credentials(None if tls_ca is None else tls_ca.read_bytes())
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._descriptors = Descriptors()

    async def close(self) -> None:
        """Closes the channels and whatever runs on them."""
        for channel in self._channels.values():
            await channel.close()

    async def call(
        self, tool: ToolConfig, method: GrpcMethod, body: Mapping[str, Any], outgoing: Outgoing
    ) -> ToolResult:
        """Sends a bound body and answers what the model is told; only a cancellation is raised."""
        target = method.target.lower()
        if target not in self._targets:
            return failed(f"The call was refused: the target {target} is not allowed by the runner's settings.")
        end = asyncio.get_running_loop().time() + outgoing.seconds
        given = self._headers.of(target)
        sent = headers_for(outgoing, given)
        channel = self._channel(target)
        try:
            async with asyncio.timeout_at(end):
                if not await _connected(channel):
                    return failed("The tool could not be reached.")
                found = await self._descriptors.find(channel, method, given)
                request = serialize(found.input_type, body)
        except TimeoutError:
            return failed(f"The tool could not be asked within {outgoing.seconds:g} s. Nothing was called.")
        except MethodUnknown as error:
            return failed(bounded(f"The call was refused: {error}.", self._result_bytes, sent))
        except NotItsForm as error:
            return failed(bounded(f"The arguments do not fit the method: {error}", MAX_STATUS_BYTES, sent))
        left = max(0.0, end - asyncio.get_running_loop().time())
        return await self._exchange(tool, channel, found, request, sent, left)

    async def _exchange(
        self,
        tool: ToolConfig,
        channel: grpc.aio.Channel,
        method: MethodDescriptor,
        request: bytes,
        sent: Mapping[str, str],
        left: float,
    ) -> ToolResult:
        broken = run_pb2.TOOL_CALL_STATE_FAILED if tool.effect is Effect.READ else run_pb2.TOOL_CALL_STATE_UNKNOWN
        make: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/{method.containing_service.full_name}/{method.name}"
        )
        call = make(request, timeout=left, metadata=tuple(sent.items()))
        try:
            code = await call.code()
            if code is not grpc.StatusCode.OK:
                details = await call.details() or ""
                text = bounded(f"The tool answered {code.name}: {details}", MAX_STATUS_BYTES, sent)
                is_open = code in _OPEN or _TOO_LARGE in details
                return ToolResult(broken, text) if is_open else failed(text)
            answer = await _json(method, await call)
        except DecodeError:
            return ToolResult(broken, "The tool's answer is not the message that the method promises.")
        finally:
            call.cancel()
        return ToolResult(run_pb2.TOOL_CALL_STATE_SUCCEEDED, bounded(answer, self._result_bytes, sent))

    def _channel(self, target: str) -> grpc.aio.Channel:
        if target not in self._channels:
            address = f"dns:///{target}"
            self._channels[target] = (
                grpc.aio.secure_channel(address, self._credentials, options=_OPTIONS)
                if self._targets[target]
                else grpc.aio.insecure_channel(address, options=_OPTIONS)
            )
        return self._channels[target]


async def _connected(channel: grpc.aio.Channel) -> bool:
    """Waits until calls can leave; so a call that fails after this may have left, and one before has not."""
    state = channel.get_state(try_to_connect=True)
    failed_before = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
    try:
        async with asyncio.timeout(RECONNECT_SECONDS if failed_before else CONNECT_SECONDS):
            while state is not grpc.ChannelConnectivity.READY:
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not failed_before:
                    return False
    except TimeoutError:
        return False
    return True


async def _json(method: MethodDescriptor, serialized: bytes) -> str:
    if len(serialized) < _SMALL:
        return to_json(method.output_type, serialized)
    return await asyncio.to_thread(to_json, method.output_type, serialized)
