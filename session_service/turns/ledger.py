"""BeginToolCall and FinishToolCall: a call is recorded before it is made, and after (SPEC 3.6)."""

import re
from dataclasses import dataclass

from sqlalchemy import Connection, select
from turnkeeper.v1 import error_reason_pb2 as reasons
from turnkeeper.v1.run_event_pb2 import RunEvent
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import Refused, invalid, not_found

from session_service.events import bodies
from session_service.runs.model import AnyRow, RunKey, RunState, ToolCallState
from session_service.runs.states import TERMINAL
from session_service.runs.store import advance
from session_service.storage.schema import attempts
from session_service.storage.write import Storage
from session_service.turns import calls
from session_service.turns.hold import hold_any, hold_current
from session_service.turns.tool_token import require_marked

CALL_ID = re.compile(r"([1-9]\d{0,8})\.([1-9]\d{0,8})\.(0|[1-9]\d{0,8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class CallStart:
    """What a runner says of a call that it is about to make."""

    call_id: str
    tool_name: str
    arguments_json: str
    model_call_id: str
    side_effect: bool
    after_event: int
    identity: bool
    """Whether the runner asks for a token that tells the tool who the caller is."""


async def begin_tool_call(storage: Storage, context: RequestContext, start: CallStart) -> AnyRow:
    """The row of the call: new, or the one that was begun before with the same tool and arguments."""
    match = CALL_ID.fullmatch(start.call_id)
    if match is None:
        raise invalid("call_id", "must be attempt.step.index")
    attempt, step, index = map(int, match.groups())

    def change(connection: Connection) -> AnyRow:
        run = hold_current(connection, context)
        if start.identity:
            require_marked(connection, run, start.tool_name)
        known = calls.find(connection, RunKey(run.tenant_id, run.run_id), start.call_id)
        if known is not None:
            if (known.tool_name, known.arguments_json) != (start.tool_name, start.arguments_json):
                raise Refused(reasons.ERROR_REASON_TOOL_CALL_CONFLICT)
            return known
        if attempt != run.attempt:
            raise invalid("call_id", "must begin with the number of the token's attempt")
        _require_stored(connection, run, start.after_event)
        row = calls.record(
            connection,
            run,
            call_id=start.call_id,
            step=step,
            call_index=index,
            tool_name=start.tool_name,
            arguments_json=start.arguments_json,
            model_call_id=start.model_call_id,
            side_effect=start.side_effect,
        )
        event = bodies.tool_call_started(start.call_id, start.tool_name, start.arguments_json)
        _tell(connection, run, event)
        return row

    return await storage.write(context.tenant_id, change)


async def finish_tool_call(
    storage: Storage, context: RequestContext, call_id: str, state: ToolCallState, result: str
) -> None:
    """Stores what came of a call, from any attempt and in any state of the run; the first result is kept.

    Only the current attempt of a run that has not ended adds an event.
    """

    def change(connection: Connection) -> None:
        run = hold_any(connection, context)
        key = RunKey(run.tenant_id, run.run_id)
        if calls.find(connection, key, call_id) is None:
            raise not_found("tool call")
        call = calls.finish(connection, key, call_id, state, result)
        current = run.attempt == context.require_run().attempt and RunState(run.state) not in TERMINAL
        if call is not None and current:
            _tell(connection, run, bodies.tool_call_finished(call_id, call.tool_name, state, result))

    await storage.write(context.tenant_id, change)


def _tell(connection: Connection, run: AnyRow, event: RunEvent) -> None:
    key, state = RunKey(run.tenant_id, run.run_id), RunState(run.state)
    if advance(connection, key, [event], expected=(state,), attempt=run.attempt) is None:
        raise RuntimeError("a locked run has changed")


def _require_stored(connection: Connection, run: AnyRow, number: int) -> None:
    """The text before a call is stored before the call, so the log's order is true (SPEC 5.2)."""
    stored = connection.execute(
        select(attempts.c.stored_number).where(
            attempts.c.tenant_id == run.tenant_id,
            attempts.c.run_id == run.run_id,
            attempts.c.attempt == run.attempt,
        )
    ).scalar_one()
    if stored < number:
        raise invalid("after_event", "names a turn event that is not stored yet")
