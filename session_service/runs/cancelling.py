"""Cancelling: the intent is stored first, then whoever executes is interrupted (SPEC 4)."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import not_found

from session_service.runs.model import AnyRow, CancelOutcome, Run, RunKey, RunState
from session_service.runs.states import TERMINAL
from session_service.runs.store import COLUMNS, find_visible, lock, transition, with_tool_calls
from session_service.storage.clock import Now
from session_service.storage.schema import runs
from session_service.storage.write import Storage

SESSION_DELETED = "the session was deleted"


async def cancel_run(storage: Storage, context: RequestContext, run_id: str, reason: str) -> tuple[Run, CancelOutcome]:
    """Stores the intent and says what is true after it; the executing dispatcher hears of it when it has committed."""

    def change(connection: Connection) -> tuple[Run, CancelOutcome]:
        if find_visible(connection, context, run_id) is None:
            raise not_found("run")
        row = lock(connection, RunKey(context.tenant_id, run_id))
        if row is None:
            raise not_found("run")
        after, outcome = _cancel(connection, row, context.user_id, reason)
        return with_tool_calls(connection, context.tenant_id, [after])[0], outcome

    return await storage.write(context.tenant_id, change)


def cancel_for_deletion(connection: Connection, context: RequestContext, session_id: str) -> None:
    """Cancels every run of a (locked) session that is not terminal."""
    found = connection.execute(
        select(*COLUMNS)
        .where(
            runs.c.tenant_id == context.tenant_id,
            runs.c.session_id == session_id,
            runs.c.state.not_in(TERMINAL),
        )
        .order_by(runs.c.run_id)
        .with_for_update(key_share=True)
    ).all()
    for row in found:
        _cancel(connection, row, context.user_id, SESSION_DELETED)


def _cancel(connection: Connection, row: AnyRow, user_id: str, reason: str) -> tuple[AnyRow, CancelOutcome]:
    state = RunState(row.state)
    if state in TERMINAL:
        return row, CancelOutcome.ALREADY_TERMINAL
    if state is RunState.CANCELLING:
        return row, CancelOutcome.ACCEPTED  # the first intent is kept
    intent: Mapping[str, Any] = {"cancel_time": Now(), "cancel_user_id": user_id, "cancel_reason": reason}
    executing = row.lease_owner is not None
    to, outcome = (
        (RunState.CANCELLING, CancelOutcome.ACCEPTED) if executing else (RunState.CANCELLED, CancelOutcome.CANCELLED)
    )
    after = transition(
        connection,
        RunKey(row.tenant_id, row.run_id),
        to,
        expected=state,
        attempt=row.attempt,
        values={**intent, "cancel_confirmed": not executing},
    )
    if after is None:
        raise RuntimeError("a locked run has changed")
    return after, outcome
