"""The write of a built-in tool: it, its audit entry and its FinishToolCall are one transaction (SPEC 1.5, 8.6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection
from turnkeeper.v1 import error_reason_pb2 as reasons
from turnkeeper.v1.run_event_pb2 import RunEvent
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import Refused, not_found, reason_name

from session_service.admin import audit
from session_service.events import bodies
from session_service.runs.model import AnyRow, RunKey, RunState, ToolCallState
from session_service.runs.store import advance
from session_service.turns import calls

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ToolWrite:
    """What a run's token writes: with which built-in tool, to what, and in which call; empty when in none."""

    tool: str
    target: str
    call_id: str

    def deed(self, run: AnyRow) -> audit.Deed:
        """The write as the audit tells it."""
        reason = f"run {run.run_id}" + (f", tool call {self.call_id}" if self.call_id else "")
        return audit.Deed(self.tool, self.target, reason)


def recorded_result(connection: Connection, run: AnyRow, write: ToolWrite) -> str | None:
    """What the call has written already; None when it is still to write. `run` is held (turns/hold.py)."""
    if not write.call_id:
        return None
    call = calls.find(connection, RunKey(run.tenant_id, run.run_id), write.call_id)
    if call is None:
        raise not_found("tool call")
    if call.tool_name != write.tool or call.attempt != run.attempt:
        raise Refused(reasons.ERROR_REASON_TOOL_CALL_CONFLICT)
    if call.state not in calls.UNFINISHED and call.state != ToolCallState.SUCCEEDED:
        raise Refused(reasons.ERROR_REASON_TOOL_CALL_CONFLICT)
    result: str | None = call.result
    return result


def finish(
    connection: Connection,
    context: RequestContext,
    run: AnyRow,
    write: ToolWrite,
    result: str,
    events: Sequence[RunEvent] = (),
) -> str:
    """Closes a write that was made: its audit entry, its events, and the result of its call, which is answered."""
    audit.record(connection, context, write.deed(run), audit.DONE)
    told = list(events)
    key = RunKey(run.tenant_id, run.run_id)
    if write.call_id:
        calls.finish(connection, key, write.call_id, ToolCallState.SUCCEEDED, result)
        told.append(bodies.tool_call_finished(write.call_id, write.tool, ToolCallState.SUCCEEDED, result))
    if advance(connection, key, told, expected={RunState.RUNNING}, attempt=run.attempt) is None:
        raise RuntimeError("a locked run has changed")
    return result


def refuse(connection: Connection, context: RequestContext, run: AnyRow, write: ToolWrite, refusal: Refused) -> Refused:
    """The refusal, to be answered and not raised, so that its audit entry commits. The call stays open."""
    audit.record(connection, context, write.deed(run), reason_name(refusal.reason))
    return refusal


def answered(outcome: T | Refused) -> T:
    """What a committed write answers; its refusal is raised now."""
    if isinstance(outcome, Refused):
        raise outcome
    return outcome
