"""The session service as one turn sees it: every call under the turn's own credential and within its time."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Protocol, TypeVar

import grpc
import structlog
from google.protobuf.message import Message as ProtoMessage
from turnkeeper.v1 import (
    agent_service_pb2,
    agent_service_pb2_grpc,
    error_reason_pb2,
    run_pb2,
    session_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
    turn_service_pb2_grpc,
)
from turnkeeper.v1 import turn_service_pb2 as turns
from turnkeeper.wire.context import Call
from turnkeeper.wire.errors import ErrorDetail, Refused

from runner_service.harnesses.base import TurnFailed
from runner_service.tools.builtin import ToolRefused
from runner_service.turns.stop import StopSignal

CALL_SECONDS = 10.0
PAGE_SIZE = 200
# Codes after which the same call may succeed. All calls of a turn may be repeated: their rows keep the first one.
_PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
# Codes of refusals that are about what a tool wants, not about its turn.
_TOOLS_OWN = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
}
# Codes after which a report will never be taken: the session is deleted, the token is over, or the report is wrong.
_HOPELESS = {
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
}

_log = structlog.get_logger("runner_service.turns")

RequestT_contra = TypeVar("RequestT_contra", bound=ProtoMessage, contravariant=True)
ResponseT_co = TypeVar("ResponseT_co", covariant=True)


class Method(Protocol[RequestT_contra, ResponseT_co]):
    """A unary method of a stub."""

    def __call__(
        self, request: RequestT_contra, /, *, timeout: float, metadata: tuple[tuple[str, str], ...]
    ) -> Awaitable[ResponseT_co]:
        """Calls it."""


class SessionDoor:
    """What one attempt asks and tells. When the session service says that the attempt is over, the turn is stopped."""

    def __init__(self, channel: grpc.aio.Channel, call: Call, signal: StopSignal, max_prompt_bytes: int) -> None:
        self._turns = turn_service_pb2_grpc.TurnServiceStub(channel)
        self._sessions = session_service_pb2_grpc.SessionServiceStub(channel)
        self._agents = agent_service_pb2_grpc.AgentServiceStub(channel)
        self._call = call
        self._claims = call.context.require_run()
        self._signal = signal
        self._max_prompt_bytes = max_prompt_bytes

    async def begin_turn(self, harness: str, runner_store: str) -> None:
        """Says that the harness is open; only after this may a prompt be made (SPEC 3.4)."""
        await self._ask(self._turns.BeginTurn, turns.BeginTurnRequest(harness=harness, runner_store=runner_store))

    def resolve_turn_context(self, seconds: float) -> Awaitable[turns.ResolveTurnContextResponse]:
        """Reads the facts and the run context; the run's row says of what (SPEC 6.4)."""
        return self._turns.ResolveTurnContext(
            turns.ResolveTurnContextRequest(), timeout=time_for(self._call, seconds), metadata=bearer(self._call)
        )

    async def begin_tool_call(self, request: turns.BeginToolCallRequest) -> turns.BeginToolCallResponse:
        """Records that a call is about to be made."""
        return await self._ask(self._turns.BeginToolCall, request)

    async def finish_tool_call(self, request: turns.FinishToolCallRequest) -> None:
        """Records a call's result."""
        await self._ask(self._turns.FinishToolCall, request)

    async def update_session(
        self, request: session_service_pb2.UpdateSessionRequest
    ) -> session_service_pb2.UpdateSessionResponse:
        """Renames the run's session, and closes the tool call that the request names."""
        return await self._ask(self._sessions.UpdateSession, request, for_tool=True)

    async def update_agent(
        self, request: agent_service_pb2.UpdateAgentRequest
    ) -> agent_service_pb2.UpdateAgentResponse:
        """Renames the run's agent, and closes the tool call that the request names."""
        return await self._ask(self._agents.UpdateAgent, request, for_tool=True)

    async def prompt(self) -> list[session_pb2.Message]:
        """The messages that the run's prompt sees, in order (SPEC 2.7); TurnFailed when there is too much of them."""
        messages: list[session_pb2.Message] = []
        size = 0
        async for page in self._pages():
            messages += page
            size += sum(message.ByteSize() for message in page)
            if size > self._max_prompt_bytes:
                raise TurnFailed(
                    run_pb2.FAILURE_REASON_HARNESS_ERROR,
                    f"The session's history is longer than the {self._max_prompt_bytes} bytes that a prompt may have: "
                    "start a new session, or raise max_prompt_bytes where the runner runs.",
                )
        return messages

    async def _pages(self) -> AsyncIterator[list[session_pb2.Message]]:
        token = ""
        while True:
            response = await self._ask(
                self._sessions.ListMessages,
                session_service_pb2.ListMessagesRequest(
                    session_id=self._claims.session_id,
                    prompt_of_run_id=self._claims.run_id,
                    page_size=PAGE_SIZE,
                    page_token=token,
                ),
            )
            yield list(response.messages)
            token = response.next_page_token
            if not token:
                return

    async def record(self, finished: Sequence[turns.FinishToolCallRequest]) -> None:
        """Records results after the turn's own end; see `report`."""
        for request in finished:
            await self._insist(self._turns.FinishToolCall, request)

    async def report(self, stopped: turns.ReportTurnStoppedRequest) -> None:
        """Says that nothing of the attempt runs any more.

        Repeated until it is taken, can never be taken, or the token expires (SPEC 4.5). The turn's own call is over
        by now, so its deadline does not bound this.
        """
        await self._insist(self._turns.ReportTurnStopped, stopped)

    async def _ask(
        self, method: Method[RequestT_contra, ResponseT_co], request: RequestT_contra, *, for_tool: bool = False
    ) -> ResponseT_co:
        """Repeats a call for as long as the turn may work: its lease, its clock or its call will end that.

        A refusal stops the turn; one that is a tool's to hear is raised as ToolRefused.
        """
        for delay in _delays():
            self._signal.check()
            try:
                timeout = time_for(self._call, CALL_SECONDS)
                return await method(request, timeout=timeout, metadata=bearer(self._call))
            except grpc.aio.AioRpcError as error:
                detail = ErrorDetail.of(error)
                if for_tool and refuses_tool(detail):
                    raise ToolRefused(detail) from None
                if detail.code not in _PASSING:
                    raise self._signal.stop(_cause(detail)) from error
                await asyncio.sleep(delay if detail.retry_after is None else max(delay, detail.retry_after))
        raise AssertionError("delays never end")

    async def _insist(self, method: Method[RequestT_contra, ResponseT_co], request: RequestT_contra) -> None:
        for delay in _delays():
            left = self._call.context.expire_time - time.time()
            if left <= 0:
                _log.warning("report gave up", run_id=self._claims.run_id, reason="the token expired")
                return
            try:
                await method(request, timeout=min(left, CALL_SECONDS), metadata=bearer(self._call))
                return
            except grpc.aio.AioRpcError as error:
                if error.code() in _HOPELESS:
                    _log.warning("report refused", run_id=self._claims.run_id, code=error.code().name)
                    return
            await asyncio.sleep(delay)


class SessionRefusal(Exception):
    """The session service refused a call of a turn in a way that a right runner does not meet."""


def bearer(call: Call) -> tuple[tuple[str, str], ...]:
    """The turn's own credential, as metadata; nothing else of the call is passed on."""
    return (("authorization", f"Bearer {call.credential.reveal()}"),)


def refuses_tool(detail: ErrorDetail) -> bool:
    """Whether a refusal is about what a tool wants. A session that is gone ends its turn, an agent does not."""
    return detail.code in _TOOLS_OWN or detail.metadata.get("resource") == "agent"


def time_for(call: Call, seconds: float) -> float:
    """So many seconds, or what is left of the turn's own call if that is less."""
    left = call.remaining()
    return seconds if left is None else min(left, seconds)


def _cause(detail: ErrorDetail) -> Exception:
    if detail.code in {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED}:
        # A deleted session fences like a newer attempt does: nobody waits for this one.
        return Refused(error_reason_pb2.ERROR_REASON_ATTEMPT_FENCED)
    return SessionRefusal(f"{detail.code.name} {detail.reason}")


def _delays() -> Iterator[float]:
    """Seconds between tries: rising to 5 s, spread so that many turns do not ask in step."""
    ceiling = 0.1
    while True:
        yield random.uniform(ceiling / 2, ceiling)  # noqa: S311 - spreads load, guards nothing
        ceiling = min(ceiling * 2, 5.0)
