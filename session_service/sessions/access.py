"""Which sessions a caller sees: one condition, joined into the SQL of every access path (SPEC 1.7)."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, select
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import not_found

from session_service.storage.schema import sessions


def visible(context: RequestContext) -> ColumnElement[bool]:
    """The sessions of the caller that are not deleted; for a run's token only the run's own session."""
    condition = owned_by(context.tenant_id, context.user_id)
    return condition if context.run is None else and_(condition, sessions.c.session_id == context.run.session_id)


def owned_by(tenant_id: Any, user_id: Any) -> ColumnElement[bool]:
    """The sessions of a user that are not deleted; takes values, or parameters of a statement that is built once."""
    return and_(
        sessions.c.tenant_id == tenant_id,
        sessions.c.owner_user_id == user_id,
        sessions.c.delete_time.is_(None),
    )


def lock_session(connection: Connection, context: RequestContext, session_id: str) -> Row[Any]:
    """The session's row, locked until the transaction ends; NOT_FOUND when the caller does not see it.

    The first lock of every change in a session (SPEC 2.4). It lets rows that refer to the session be inserted.
    """
    row = connection.execute(
        select(sessions)
        .where(visible(context), sessions.c.session_id == session_id)
        .with_for_update(of=sessions, key_share=True)
    ).one_or_none()
    if row is None:
        raise not_found("session")
    return row
