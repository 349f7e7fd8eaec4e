"""The typed bodies of events: the log stores the contract's own messages, so a watcher gets what was written."""

from turnkeeper.v1 import run_event_pb2, run_pb2, session_pb2
from turnkeeper.v1.run_event_pb2 import RunEvent
from turnkeeper.wire.text import cut

from session_service.runs.model import AnyRow, Failure, ToolCallState
from session_service.times import timestamp

TEXT_LIMIT = 64 * 1024
"""Bytes of one text in an event; more is cut on a code point, with a marker and the original size (SPEC 5.6)."""


def failure_proto(row: AnyRow) -> run_pb2.RunFailure | None:
    """Why the run of this row failed, if it did."""
    if row.failure_reason is None:
        return None
    reason = run_pb2.FailureReason.Value(f"FAILURE_REASON_{row.failure_reason}")
    return run_pb2.RunFailure(reason=reason, message=row.failure_message)


def failure_of(failure: run_pb2.RunFailure) -> Failure:
    """What a runner reported, as it is stored; a reason that this version does not know is a harness's error."""
    known = {number: name for name, number in run_pb2.FailureReason.items() if number}
    name = known.get(failure.reason, "FAILURE_REASON_HARNESS_ERROR").removeprefix("FAILURE_REASON_")
    return Failure(name, cut(failure.message, 1000)[0])


def cancel_proto(row: AnyRow) -> run_pb2.RunCancel | None:
    """Who cancelled the run of this row, if anybody did."""
    if row.cancel_time is None:
        return None
    return run_pb2.RunCancel(
        request_time=timestamp(row.cancel_time),
        requested_by=row.cancel_user_id,
        reason=row.cancel_reason,
        confirmed=row.cancel_confirmed,
    )


def state_changed(row: AnyRow) -> RunEvent:
    """The run of this row has entered its state."""
    state = run_pb2.RunState.Value(f"RUN_STATE_{row.state}")
    return RunEvent(
        state_changed=run_event_pb2.RunStateChanged(state=state, failure=failure_proto(row), cancel=cancel_proto(row))
    )


def text_delta(delta: run_event_pb2.TextDelta) -> RunEvent:
    """More of the answer's text."""
    text, original = cut(delta.text, TEXT_LIMIT)
    return RunEvent(text_delta=run_event_pb2.TextDelta(text=text, step=delta.step, original_bytes=original))


def reasoning_delta(delta: run_event_pb2.ReasoningDelta) -> RunEvent:
    """More of the model's reasoning."""
    text, original = cut(delta.text, TEXT_LIMIT)
    return RunEvent(reasoning_delta=run_event_pb2.ReasoningDelta(text=text, step=delta.step, original_bytes=original))


def message_completed(message: session_pb2.Message) -> RunEvent:
    """A message of the turn was stored in the session."""
    shown = session_pb2.Message()
    shown.CopyFrom(message)
    shown.text, original = cut(message.text, TEXT_LIMIT)
    for call in shown.tool_calls:
        call.arguments_json = cut(call.arguments_json, TEXT_LIMIT)[0]
    return RunEvent(message_completed=run_event_pb2.MessageCompleted(message=shown, original_bytes=original))


def tool_call_started(call_id: str, tool_name: str, arguments_json: str) -> RunEvent:
    """A tool call was recorded and is about to be made."""
    arguments, original = cut(arguments_json, TEXT_LIMIT)
    return RunEvent(
        tool_call_started=run_event_pb2.ToolCallStarted(
            call_id=call_id, tool_name=tool_name, arguments_json=arguments, original_bytes=original
        )
    )


def tool_call_finished(call_id: str, tool_name: str, state: ToolCallState, result: str) -> RunEvent:
    """A tool call's result was recorded."""
    text, original = cut(result, TEXT_LIMIT)
    return RunEvent(
        tool_call_finished=run_event_pb2.ToolCallFinished(
            call_id=call_id,
            tool_name=tool_name,
            state=run_pb2.ToolCallState.Value(f"TOOL_CALL_STATE_{state}"),
            result=text,
            original_bytes=original,
        )
    )


def session_renamed(name: str) -> RunEvent:
    """A tool of the run renamed the session."""
    return RunEvent(session_renamed=run_event_pb2.SessionRenamed(name=name))


def revision_committed(variant_id: str, revision_id: str, version: str) -> RunEvent:
    """A tool of the run committed a revision."""
    return RunEvent(
        revision_committed=run_event_pb2.RevisionCommitted(
            variant_id=variant_id, revision_id=revision_id, version=version
        )
    )
