"""The rows of tool calls: recorded before they are made and after (SPEC 3.6)."""

import uuid

from sqlalchemy import Connection, insert, select, update
from turnkeeper.v1.run_event_pb2 import RunEvent

from session_service.events import bodies
from session_service.runs.model import AnyRow, RunKey, ToolCallState
from session_service.storage.clock import Now
from session_service.storage.schema import tool_calls

OPEN = (ToolCallState.STARTED,)
UNFINISHED = (ToolCallState.STARTED, ToolCallState.UNKNOWN, ToolCallState.NOT_MADE)


def find(connection: Connection, key: RunKey, call_id: str) -> AnyRow | None:
    """One recorded call."""
    return connection.execute(
        select(tool_calls).where(
            tool_calls.c.tenant_id == key.tenant_id, tool_calls.c.run_id == key.run_id, tool_calls.c.call_id == call_id
        )
    ).one_or_none()


def of_turn(connection: Connection, run: AnyRow) -> list[AnyRow]:
    """The calls of the run's current attempt and turn, in order."""
    return list(
        connection.execute(
            select(tool_calls)
            .where(
                tool_calls.c.tenant_id == run.tenant_id,
                tool_calls.c.run_id == run.run_id,
                tool_calls.c.attempt == run.attempt,
                tool_calls.c.turn == run.turn,
            )
            .order_by(tool_calls.c.step, tool_calls.c.call_index)
        )
    )


def record(
    connection: Connection,
    run: AnyRow,
    *,
    call_id: str,
    step: int,
    call_index: int,
    tool_name: str,
    arguments_json: str,
    model_call_id: str,
    side_effect: bool,
) -> AnyRow:
    """Stores a call that is about to be made, with the key that its repetitions will carry."""
    return connection.execute(
        insert(tool_calls)
        .values(
            tenant_id=run.tenant_id,
            run_id=run.run_id,
            call_id=call_id,
            attempt=run.attempt,
            turn=run.turn,
            step=step,
            call_index=call_index,
            tool_name=tool_name,
            arguments_json=arguments_json,
            model_call_id=model_call_id,
            side_effect=side_effect,
            state=ToolCallState.STARTED,
            idempotency_key=str(uuid.uuid4()),
            begin_time=Now(),
        )
        .returning(tool_calls)
    ).one()


def finish(
    connection: Connection, key: RunKey, call_id: str, state: ToolCallState, result: str | None
) -> AnyRow | None:
    """Stores what came of a call, unless a result is there already; None then."""
    return connection.execute(
        update(tool_calls)
        .where(
            tool_calls.c.tenant_id == key.tenant_id,
            tool_calls.c.run_id == key.run_id,
            tool_calls.c.call_id == call_id,
            tool_calls.c.state.in_(UNFINISHED),
            tool_calls.c.result.is_(None),
        )
        .values(state=state, result=result, finish_time=Now())
        .returning(tool_calls)
    ).one_or_none()


def close_open(connection: Connection, run: AnyRow) -> list[RunEvent]:
    """Marks the run's open calls UNKNOWN, since its turn ends without their results, and answers their events."""
    closed = connection.execute(
        update(tool_calls)
        .where(
            tool_calls.c.tenant_id == run.tenant_id,
            tool_calls.c.run_id == run.run_id,
            tool_calls.c.state.in_(OPEN),
        )
        .values(state=ToolCallState.UNKNOWN, finish_time=Now())
        .returning(tool_calls)
    ).all()
    ordered = sorted(closed, key=lambda call: (call.attempt, call.step, call.call_index))
    return [bodies.tool_call_finished(c.call_id, c.tool_name, ToolCallState.UNKNOWN, "") for c in ordered]
