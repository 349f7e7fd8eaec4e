"""TurnService: translates the runner's calls; decides nothing."""

from turnkeeper.v1 import run_pb2
from turnkeeper.v1.turn_service_pb2 import (
    BeginToolCallRequest,
    BeginToolCallResponse,
    BeginTurnRequest,
    BeginTurnResponse,
    FinishToolCallRequest,
    FinishToolCallResponse,
    RecordedToolResult,
    ReportTurnStoppedRequest,
    ReportTurnStoppedResponse,
    ResolveTurnContextRequest,
    ResolveTurnContextResponse,
)
from turnkeeper.wire.context import Call
from turnkeeper.wire.errors import invalid

from session_service.agents.rpc import reference_of
from session_service.facts.logic import resolve_direct_turn, resolve_run_turn
from session_service.facts.model import DirectTurn
from session_service.facts.rpc import turn_context_proto
from session_service.identity.keys import KeyRing
from session_service.runs.model import ToolCallState
from session_service.storage.write import Storage
from session_service.turns.begin import begin_direct_turn, begin_turn
from session_service.turns.ledger import CallStart, begin_tool_call, finish_tool_call
from session_service.turns.record import report_stopped

_PREFIX = "TOOL_CALL_STATE_"


class TurnServicer:
    """The runner's door."""

    def __init__(self, storage: Storage, keys: KeyRing) -> None:
        self._storage, self._keys = storage, keys

    async def BeginTurn(self, request: BeginTurnRequest, call: Call) -> BeginTurnResponse:
        """SPEC 3.4, 9.7."""
        of_run = call.context.run is not None
        if bool(request.session_id) is of_run:
            raise invalid("session_id", "must be empty with a run token" if of_run else "is required with a user token")
        harness, store = request.harness, request.runner_store
        if of_run:
            number = await begin_turn(self._storage, call.context, harness, store)
        else:
            number = await begin_direct_turn(self._storage, call.context, request.session_id, harness, store)
        return BeginTurnResponse(turn_number=number)

    async def ResolveTurnContext(self, request: ResolveTurnContextRequest, call: Call) -> ResolveTurnContextResponse:
        """SPEC 6, 7.1, 7.2."""
        if call.context.run is None:
            found = await resolve_direct_turn(self._storage, call.context, _direct_turn(request))
        else:
            for field, _ in request.ListFields():
                raise invalid(field.name, "must be empty with a run token")
            found = await resolve_run_turn(self._storage, call.context)
        return turn_context_proto(call.context, found)

    async def BeginToolCall(self, request: BeginToolCallRequest, call: Call) -> BeginToolCallResponse:
        """SPEC 1.5, 3.6."""
        start = CallStart(
            call_id=request.call_id,
            tool_name=request.tool_name,
            arguments_json=request.arguments_json,
            model_call_id=request.model_call_id,
            side_effect=request.side_effect,
            after_event=request.after_event,
            identity=request.identity,
        )
        row = await begin_tool_call(self._storage, call.context, start)
        response = BeginToolCallResponse(idempotency_key=row.idempotency_key if row.side_effect else "")
        if row.result is not None:
            response.recorded_result.CopyFrom(
                RecordedToolResult(state=run_pb2.ToolCallState.Value(_PREFIX + row.state), result=row.result)
            )
        elif request.identity:
            response.tool_token = self._keys.tool_token(
                tool_name=request.tool_name,
                tenant_id=call.context.tenant_id,
                user_id=call.context.user_id,
                roles=call.context.roles,
                run_id=call.context.require_run().run_id,
            )
        return response

    async def FinishToolCall(self, request: FinishToolCallRequest, call: Call) -> FinishToolCallResponse:
        """SPEC 3.6."""
        state = _ended_state("state", request.state)
        await finish_tool_call(self._storage, call.context, request.call_id, state, request.result)
        return FinishToolCallResponse()

    async def ReportTurnStopped(self, request: ReportTurnStoppedRequest, call: Call) -> ReportTurnStoppedResponse:
        """SPEC 4.5."""
        stopped = {
            each.call_id: _ended_state("stopped_tool_calls.state", each.state) for each in request.stopped_tool_calls
        }
        await report_stopped(self._storage, call.context, request.events, stopped)
        return ReportTurnStoppedResponse()


def _direct_turn(request: ResolveTurnContextRequest) -> DirectTurn:
    return DirectTurn(
        session_id=request.session_id or None,
        turn_number=request.turn_number,
        references=[reference_of(reference) for reference in request.references],
        config_json=request.config_json or None,
    )


def _ended_state(field: str, state: run_pb2.ToolCallState.ValueType) -> ToolCallState:
    name = ToolCallState(run_pb2.ToolCallState.Name(state).removeprefix(_PREFIX))
    if name is ToolCallState.STARTED:
        raise invalid(field, "must say what came of the call")
    return name
