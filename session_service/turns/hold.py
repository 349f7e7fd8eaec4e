"""A run token is checked inside the transaction that it serves, with the run's row locked (SPEC 1.2)."""

from sqlalchemy import Connection, select
from turnkeeper.v1 import error_reason_pb2 as reasons
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import Refused, not_found

from session_service.runs.model import AnyRow, RunKey, RunState
from session_service.runs.store import lock
from session_service.storage.schema import sessions


def hold_current(connection: Connection, context: RequestContext, *, with_session: bool = False) -> AnyRow:
    """The run of the token, locked, if it is RUNNING in the token's attempt and its session stands.

    Otherwise NOT_FOUND for a deleted session, and ATTEMPT_FENCED: the attempt must stop.
    """
    row = hold_any(connection, context, with_session=with_session)
    deleted = connection.execute(
        select(sessions.c.delete_time).where(
            sessions.c.tenant_id == row.tenant_id, sessions.c.session_id == row.session_id
        )
    ).scalar_one()
    if deleted is not None:
        raise not_found("session")
    if row.state != RunState.RUNNING or row.attempt != context.require_run().attempt:
        raise Refused(reasons.ERROR_REASON_ATTEMPT_FENCED)
    return row


def hold_any(connection: Connection, context: RequestContext, *, with_session: bool = False) -> AnyRow:
    """The run of the token, locked, in any state and attempt; NOT_FOUND when its rows are gone."""
    key = RunKey(context.tenant_id, context.require_run().run_id)
    row = lock(connection, key, with_session=with_session)
    if row is None:
        raise not_found("run")
    return row
