"""The sessions' SQL. Callers hold the session's lock where they change it."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    update,
)
from turnkeeper.wire.context import RequestContext

from session_service.runs.states import TERMINAL
from session_service.sessions.access import visible
from session_service.sessions.model import (
    Message,
    MessageDraft,
    MessagePlace,
    MessageRole,
    MessageStatus,
    NameSource,
    PromptRun,
    Session,
    SessionLifecycle,
    ToolCallAsked,
)
from session_service.storage.clock import Now
from session_service.storage.schema import messages, runs, sessions
from session_service.storage.sizes import ByteLength

_BUSY = exists().where(
    runs.c.tenant_id == sessions.c.tenant_id,
    runs.c.session_id == sessions.c.session_id,
    runs.c.state.not_in(TERMINAL),
)
_SESSION: Select[Any] = select(sessions, _BUSY.label("busy"))
_OF_SESSION = and_(sessions.c.tenant_id == messages.c.tenant_id, sessions.c.session_id == messages.c.session_id)
_ROWS_PER_INSERT = 200


def insert_session(
    connection: Connection, context: RequestContext, name: str | None, source: NameSource | None
) -> Session:
    """Adds a session of the caller, PROVISIONAL and empty (SPEC 9.1)."""
    session_id = str(uuid.uuid4())
    connection.execute(
        insert(sessions).values(
            tenant_id=context.tenant_id,
            session_id=session_id,
            owner_user_id=context.user_id,
            name=name,
            name_source=source,
            lifecycle=SessionLifecycle.PROVISIONAL,
            create_time=Now(),
            update_time=Now(),
        )
    )
    return _session(connection.execute(_one(context, session_id)).one())


def find_session(connection: Connection, context: RequestContext, session_id: str) -> Session | None:
    """The session, if the caller sees it."""
    row = connection.execute(_one(context, session_id)).one_or_none()
    return None if row is None else _session(row)


def read_sessions(
    connection: Connection, context: RequestContext, before: tuple[int, str] | None, limit: int
) -> list[Session]:
    """The caller's sessions, newest first, after the place (create_time, session_id) where a page ended."""
    query = _SESSION.where(visible(context))
    if before is not None:
        query = query.where(tuple_(sessions.c.create_time, sessions.c.session_id) < tuple_(*before))
    rows = connection.execute(query.order_by(sessions.c.create_time.desc(), sessions.c.session_id.desc()).limit(limit))
    return [_session(row) for row in rows]


def set_name(
    connection: Connection, context: RequestContext, session_id: str, name: str | None, source: NameSource | None
) -> bool:
    """Renames the session unless an automatic name would replace a user's; says whether it did (SPEC 8.7)."""
    allowed = and_(visible(context), sessions.c.session_id == session_id)
    if source is NameSource.AUTOMATIC:
        allowed = and_(allowed, sessions.c.name_source.is_distinct_from(NameSource.USER))
    change = update(sessions).where(allowed).values(name=name, name_source=source if name else None)
    return connection.execute(change.values(update_time=Now())).rowcount == 1


def set_deleted(connection: Connection, context: RequestContext, session_id: str) -> None:
    """Puts the tombstone on the session: from the commit on nobody sees it."""
    connection.execute(
        update(sessions).where(visible(context), sessions.c.session_id == session_id).values(delete_time=Now())
    )


def next_order(connection: Connection, tenant_id: str, session_id: str) -> int:
    """The session's next number in the order that prompts follow: of a run's first claim, or an appended message."""
    order: int = connection.execute(
        update(sessions)
        .where(sessions.c.tenant_id == tenant_id, sessions.c.session_id == session_id)
        .values(last_order=sessions.c.last_order + 1)
        .returning(sessions.c.last_order)
    ).scalar_one()
    return order


def add_messages(
    connection: Connection, tenant_id: str, session_id: str, drafts: Sequence[MessageDraft]
) -> list[Message]:
    """Stores messages at the session's next positions, in the order given."""
    if not drafts:
        return []
    last, now = connection.execute(
        update(sessions)
        .where(sessions.c.tenant_id == tenant_id, sessions.c.session_id == session_id)
        .values(last_position=sessions.c.last_position + len(drafts))
        .returning(sessions.c.last_position, Now())
    ).one()
    first = last - len(drafts) + 1
    added = [_numbered(session_id, first + place, now, draft) for place, draft in enumerate(drafts)]
    rows = [_row(tenant_id, message, draft) for message, draft in zip(added, drafts, strict=True)]
    for start in range(0, len(rows), _ROWS_PER_INSERT):
        connection.execute(insert(messages).values(rows[start : start + _ROWS_PER_INSERT]))
    return added


def read_places(
    connection: Connection, context: RequestContext, session_id: str, after: int, limit: int
) -> list[MessagePlace]:
    """Where the session's messages after a position stand, in the order of storing."""
    rows = connection.execute(
        _places(context, session_id, literal(0))
        .where(messages.c.position > after)
        .order_by(messages.c.position)
        .limit(limit)
    )
    return [MessagePlace(*row) for row in rows]


def read_prompt_places(
    connection: Connection,
    context: RequestContext,
    session_id: str,
    run: PromptRun,
    *,
    after: tuple[int, int],
    limit: int,
) -> list[MessagePlace]:
    """Where the messages stand that the run's prompt sees (SPEC 2.7), after a place (order, position), in prompt order.

    A message's order is that of its run's first claim, or its own when it was appended; a run that was never claimed
    has none, so its messages are left out.
    """
    order = func.coalesce(messages.c.prompt_order, runs.c.claim_order)
    rows = connection.execute(
        _places(context, session_id, order)
        .outerjoin(runs, and_(runs.c.tenant_id == messages.c.tenant_id, runs.c.run_id == messages.c.run_id))
        .where(
            or_(order < run.claim_order, messages.c.run_id == run.run_id),
            tuple_(order, messages.c.position) > tuple_(*after),
        )
        .order_by(order, messages.c.position)
        .limit(limit)
    )
    return [MessagePlace(*row) for row in rows]


def read_messages(
    connection: Connection, context: RequestContext, session_id: str, positions: Sequence[int]
) -> list[Message]:
    """The session's messages at these positions, in the order given."""
    rows = connection.execute(
        select(messages)
        .join(sessions, _OF_SESSION)
        .where(visible(context), sessions.c.session_id == session_id, messages.c.position.in_(positions))
    )
    found = {row.position: _message(row) for row in rows}
    return [found[position] for position in positions if position in found]


def find_prompt_run(connection: Connection, context: RequestContext, session_id: str, run_id: str) -> PromptRun | None:
    """A run of this session, if the caller sees it."""
    row = connection.execute(
        select(runs.c.run_id, runs.c.claim_order)
        .join(sessions, and_(sessions.c.tenant_id == runs.c.tenant_id, sessions.c.session_id == runs.c.session_id))
        .where(visible(context), sessions.c.session_id == session_id, runs.c.run_id == run_id)
    ).one_or_none()
    return None if row is None else PromptRun(row.run_id, row.claim_order)


def _one(context: RequestContext, session_id: str) -> Select[Any]:
    return _SESSION.where(visible(context), sessions.c.session_id == session_id)


def _places(context: RequestContext, session_id: str, order: ColumnElement[int]) -> Select[Any]:
    size = ByteLength(messages.c.text) + ByteLength(messages.c.tool_calls_json)
    return (
        select(order, messages.c.position, size)
        .select_from(messages)
        .join(sessions, _OF_SESSION)
        .where(visible(context), sessions.c.session_id == session_id)
    )


def _session(row: Row[Any]) -> Session:
    return Session(
        session_id=row.session_id,
        owner_user_id=row.owner_user_id,
        name=row.name,
        name_source=None if row.name_source is None else NameSource(row.name_source),
        lifecycle=SessionLifecycle(row.lifecycle),
        busy=bool(row.busy),
        create_time=row.create_time,
        update_time=row.update_time,
    )


def _numbered(session_id: str, position: int, now: int, draft: MessageDraft) -> Message:
    return Message(
        message_id=str(uuid.uuid4()),
        session_id=session_id,
        run_id=draft.run_id,
        position=position,
        role=draft.role,
        text=draft.text,
        tool_calls=draft.tool_calls,
        tool_call_id=draft.tool_call_id,
        status=draft.status,
        create_time=now,
    )


def _row(tenant_id: str, message: Message, draft: MessageDraft) -> dict[str, object]:
    calls = json.dumps([asdict(call) for call in message.tool_calls]) if message.tool_calls else None
    return {
        "tenant_id": tenant_id,
        "session_id": message.session_id,
        "position": message.position,
        "message_id": message.message_id,
        "run_id": message.run_id,
        "prompt_order": draft.prompt_order,
        "role": message.role,
        "text": message.text,
        "tool_calls_json": calls,
        "tool_call_id": message.tool_call_id,
        "status": message.status,
        "create_time": message.create_time,
    }


def _message(row: Row[Any]) -> Message:
    return Message(
        message_id=row.message_id,
        session_id=row.session_id,
        run_id=row.run_id,
        position=row.position,
        role=MessageRole(row.role),
        text=row.text,
        tool_calls=tuple(ToolCallAsked(**call) for call in json.loads(row.tool_calls_json or "[]")),
        tool_call_id=row.tool_call_id,
        status=MessageStatus(row.status),
        create_time=row.create_time,
    )
