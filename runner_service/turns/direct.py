"""A direct turn's way into the session service, under its user's own credential (SPEC 9.7)."""

from collections.abc import Awaitable, Sequence

import grpc
from turnkeeper.v1 import (
    agent_service_pb2,
    agent_service_pb2_grpc,
    error_reason_pb2,
    session_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
    turn_service_pb2_grpc,
)
from turnkeeper.v1 import runner_service_pb2 as runner
from turnkeeper.v1 import turn_service_pb2 as turns
from turnkeeper.wire.context import Call
from turnkeeper.wire.errors import PREFIX, ErrorDetail, Refused

from runner_service.tools.builtin import NotAnswered, ToolRefused
from runner_service.turns.door import (
    CALL_SECONDS,
    Method,
    RequestT_contra,
    ResponseT_co,
    SessionRefusal,
    bearer,
    time_for,
)
from runner_service.turns.stop import StopSignal

RETRY_SECONDS = 1.0
# Codes of a session service that did not answer in its own words.
_AWAY = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


class DirectDoor:
    """What one direct turn asks. It has no rows but its number, so it tells nothing."""

    def __init__(self, channel: grpc.aio.Channel, call: Call, start: runner.TurnStart, signal: StopSignal) -> None:
        self._turns = turn_service_pb2_grpc.TurnServiceStub(channel)
        self._sessions = session_service_pb2_grpc.SessionServiceStub(channel)
        self._agents = agent_service_pb2_grpc.AgentServiceStub(channel)
        self._call = call
        self._start = start
        self._signal = signal
        self._number = 0

    async def begin_turn(self, harness: str, runner_store: str) -> None:
        """Numbers the turn on its session, if it has one. Refused: the caller is answered in the same words.

        Never repeated: each call that arrives numbers a turn, so a lost answer must not make the next one a second.
        """
        if not self._start.session_id:
            return
        request = turns.BeginTurnRequest(session_id=self._start.session_id, harness=harness, runner_store=runner_store)
        try:
            response = await self._turns.BeginTurn(
                request, timeout=time_for(self._call, CALL_SECONDS), metadata=bearer(self._call)
            )
        except grpc.aio.AioRpcError as error:
            raise self._signal.stop(_refusal(ErrorDetail.of(error))) from error
        self._number = response.turn_number

    def resolve_turn_context(self, seconds: float) -> Awaitable[turns.ResolveTurnContextResponse]:
        """Reads the facts and the run context as far as the user may."""
        request = turns.ResolveTurnContextRequest(
            session_id=self._start.session_id,
            references=self._start.references,
            turn_number=self._number,
            config_json=self._start.config_json,
        )
        return self._turns.ResolveTurnContext(
            request, timeout=time_for(self._call, seconds), metadata=bearer(self._call)
        )

    async def update_session(
        self, request: session_service_pb2.UpdateSessionRequest
    ) -> session_service_pb2.UpdateSessionResponse:
        """Renames the turn's session as its user may; no recorded call is closed with it."""
        request.ClearField("tool_call_id")
        return await self._for_tool(self._sessions.UpdateSession, request)

    async def update_agent(
        self, request: agent_service_pb2.UpdateAgentRequest
    ) -> agent_service_pb2.UpdateAgentResponse:
        """Renames the turn's agent as its user may; no recorded call is closed with it."""
        request.ClearField("tool_call_id")
        return await self._for_tool(self._agents.UpdateAgent, request)

    async def _for_tool(self, method: Method[RequestT_contra, ResponseT_co], request: RequestT_contra) -> ResponseT_co:
        """One try: a lost answer may belong to a change that was made."""
        try:
            return await method(request, timeout=time_for(self._call, CALL_SECONDS), metadata=bearer(self._call))
        except grpc.aio.AioRpcError as error:
            detail = ErrorDetail.of(error)
            raise ToolRefused(detail) if detail.reason and detail.code not in _AWAY else NotAnswered from None

    async def prompt(self) -> Sequence[session_pb2.Message]:
        """The input and nothing else."""
        return [session_pb2.Message(role=session_pb2.MESSAGE_ROLE_USER, text=self._start.input)]


def _refusal(detail: ErrorDetail) -> Exception:
    reason = error_reason_pb2.ErrorReason.DESCRIPTOR.values_by_name.get(PREFIX + detail.reason)
    if reason is not None:
        return Refused(
            error_reason_pb2.ErrorReason.Value(reason.name),
            metadata=detail.metadata,
            fields=detail.fields,
            retry_after=detail.retry_after,
        )
    if detail.code in _AWAY:
        return Refused(error_reason_pb2.ERROR_REASON_RUNNER_NOT_READY, retry_after=RETRY_SECONDS)
    return SessionRefusal(detail.code.name)
