"""The cases of TurnService, and of what else a run's token may do."""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message
from turnkeeper.v1 import run_event_pb2, run_pb2
from turnkeeper.v1 import session_service_pb2 as sessions
from turnkeeper.v1 import turn_event_pb2 as events
from turnkeeper.v1 import turn_service_pb2 as turns
from turnkeeper.wire.context import TokenKind

from tests.contract.cases.agents import PATCHED, commit, patch, update_agent
from tests.contract.cases.case import HELD, UNIMPLEMENTED, Case
from tests.contract.cases.sessions import prompt, update_session
from tests.contract.worlds import World
from tests.fixtures.journeys import reference

RUN_TOKEN = TokenKind.RUN


def _own(rpc: str, scope: str | None, make: Callable[[World], Message], required: str = "", **more: Any) -> Case:
    """What a run's token may do beside the turn itself."""
    return Case(rpc, scope, make, required, note="by a run", kind=RUN_TOKEN, live=True, **more)


OF_RUNS = (
    _own(
        "SessionService/GetSession",
        None,
        lambda world: sessions.GetSessionRequest(session_id=world.session_id, include_harness_state=True),
        "session_id",
    ),
    _own("SessionService/ListMessages", None, prompt, "session_id"),
    _own("SessionService/UpdateSession", "sessions:write", update_session, "session_id update_mask", changes=True),
    _own("AgentService/UpdateAgent", "agents:write", update_agent, "agent_id update_mask", changes=True),
    _own("AgentService/CommitRevision", "agents:write", commit, "variant_id config_json", changes=True),
    _own("AgentService/PatchRevision", "agents:write", patch, PATCHED, answer=UNIMPLEMENTED),
)


def _turn(method: str, make: Callable[[World], Message], required: str = "", **more: Any) -> Case:
    return Case(f"TurnService/{method}", None, make, required, kind=RUN_TOKEN, live=True, **more)


def _report(_: World) -> Message:
    def delta(text: str) -> dict[str, Any]:
        return {"text": text, "step": 2, "original_bytes": 0}

    # The events that every stop may bring, and at the end one of each other kind.
    usage = run_event_pb2.UsageReported(usage=run_pb2.Usage(input_tokens=1, output_tokens=1), step=2, model="m")
    bodies: list[dict[str, Any]] = [
        {"text_delta": run_event_pb2.TextDelta(**delta("More."))},
        {"reasoning_delta": run_event_pb2.ReasoningDelta(**delta("Hm."))},
        {"message_completed": events.StepCompleted(step=2, finish_reason="stop")},
        {"usage_reported": usage},
        {"turn_ended": events.TurnEnded(completed=events.TurnCompleted())},
    ]
    return turns.ReportTurnStoppedRequest(
        events=[events.TurnEvent(number=101 + place, **body) for place, body in enumerate(bodies)],
        stopped_tool_calls=[turns.StoppedToolCall(call_id="1.7.0", state=run_pb2.TOOL_CALL_STATE_UNKNOWN)],
    )


def _rare_report(_: World) -> Message:
    asked = events.ApprovalRequested(call_id="1.1.0", tool_name="t", arguments_json="{}", prompt="May I?")
    failure = run_pb2.RunFailure(reason=run_pb2.FAILURE_REASON_HARNESS_ERROR, message="It broke.")
    return turns.ReportTurnStoppedRequest(
        events=[
            events.TurnEvent(number=1, interaction_requested=asked),
            events.TurnEvent(number=2, lease_probe=events.LeaseProbe(probe=1)),
            events.TurnEvent(number=3, turn_ended=events.TurnEnded(failed=failure)),
        ]
    )


def _direct_context(world: World) -> Message:
    return turns.ResolveTurnContextRequest(
        session_id=world.session_id, references=[reference(world.agent_id)], turn_number=world.direct_turn
    )


TURNS = (
    _turn("ResolveTurnContext", lambda _: turns.ResolveTurnContextRequest(), note="of a run"),
    Case(
        "TurnService/ResolveTurnContext",
        "runner:invoke",
        _direct_context,
        "references[0].name",
        note="of a direct turn",
        lenient=("session_id", "agent_id"),
    ),
    _turn(
        "BeginTurn",
        lambda _: turns.BeginTurnRequest(harness="scripted", runner_store="store-1"),
        "harness",
        note="of a run",
        changes=True,
    ),
    Case(
        "TurnService/BeginTurn",
        "runner:invoke",
        lambda world: turns.BeginTurnRequest(session_id=world.session_id, harness="scripted", runner_store="store-1"),
        "harness session_id",
        note="of a direct turn",
        changes=True,
    ),
    _turn(
        "BeginToolCall",
        lambda _: turns.BeginToolCallRequest(
            call_id="1.8.0", tool_name="lookup", arguments_json="{}", model_call_id="c-1", side_effect=True
        ),
        "call_id tool_name",
        changes=True,
    ),
    _turn(
        "FinishToolCall",
        lambda _: turns.FinishToolCallRequest(call_id="1.7.0", state=run_pb2.TOOL_CALL_STATE_SUCCEEDED, result="found"),
        "call_id",
        changes=True,
    ),
    _turn("ReportTurnStopped", _report, "stopped_tool_calls[0].call_id events[4].turn_ended.outcome", changes=True),
    _turn(
        "ReportTurnStopped",
        _rare_report,
        "events[0].interaction_requested.call_id events[0].interaction_requested.tool_name",
        note="rare events",
        answer=HELD,
    ),
    _turn(
        "ResolveSecret",
        lambda _: turns.ResolveSecretRequest(name="key", tool_name="lookup"),
        "name tool_name",
        answer=UNIMPLEMENTED,
    ),
)
