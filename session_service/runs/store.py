"""The runs' SQL: guarded transitions, each with its events in the same transaction (SPEC 3.1)."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, func, select, tuple_, update
from turnkeeper.v1.run_event_pb2 import RunEvent
from turnkeeper.wire.context import RequestContext

from session_service.events import bodies
from session_service.events.store import insert_events
from session_service.runs.model import AnyRow, Run, RunFilter, RunKey, RunState
from session_service.runs.states import TERMINAL, require_legal
from session_service.sessions.access import visible
from session_service.storage.clock import Now
from session_service.storage.database import wake_after_commit
from session_service.storage.hints import QUEUE
from session_service.storage.schema import revisions, run_labels, runs, sessions, tool_calls

COLUMNS = tuple(column for column in runs.c if column.name not in {"input", "config_json"})
"""A run's row without what may be a megabyte each; only `find_order` reads that."""

_OF_SESSION = and_(sessions.c.tenant_id == runs.c.tenant_id, sessions.c.session_id == runs.c.session_id)


def control_topic(run_id: str) -> str:
    """The hint topic of whoever executes a run: its state needs another look."""
    return f"control:{run_id}"


def lock(connection: Connection, key: RunKey, *, with_session: bool = False) -> AnyRow | None:
    """The run's row, locked; None when there is none. Lock order everywhere: session, runs by id, children (SPEC 2.4).

    `with_session` locks its session first: for whoever stores messages, numbers turns or ends the run.
    """
    mine = (runs.c.tenant_id == key.tenant_id, runs.c.run_id == key.run_id)
    if with_session:
        session_id = connection.execute(select(runs.c.session_id).where(*mine)).scalar_one_or_none()
        if session_id is None:
            return None
        connection.execute(
            select(sessions.c.session_id)
            .where(sessions.c.tenant_id == key.tenant_id, sessions.c.session_id == session_id)
            .with_for_update(key_share=True)
        )
    return connection.execute(select(*COLUMNS).where(*mine).with_for_update(key_share=True)).one_or_none()


def advance(
    connection: Connection,
    key: RunKey,
    events: Sequence[RunEvent],
    *,
    expected: Collection[RunState],
    attempt: int,
    values: Mapping[str, Any] | None = None,
) -> AnyRow | None:
    """Adds events, and changes columns other than the state, if the run is in an expected state and attempt.

    Answers the row, or None when the guard did not hold and nothing was touched.
    """
    row = _guarded_update(connection, key, len(events), expected, attempt, values or {})
    if row is not None and events:
        insert_events(connection, row, row.last_sequence - len(events) + 1, events)
        wake_after_commit(connection, (key.run_id,))
    return row


def transition(
    connection: Connection,
    key: RunKey,
    to: RunState,
    *,
    expected: RunState,
    attempt: int,
    values: Mapping[str, Any] | None = None,
    events: Sequence[RunEvent] = (),
) -> AnyRow | None:
    """Moves the run from `expected` to `to`, with `events` and the change's own event, if the guard holds.

    Answers the row, or None when the guard did not hold and nothing was touched. `attempt` is the expected one; a claim
    raises it through `values`.
    """
    require_legal(expected, to)
    changed: dict[str, Any] = {"state": to, **(values or {})}
    if to in TERMINAL:
        changed |= {"end_time": Now(), "lease_owner": None, "lease_expire_time": None}
    row = _guarded_update(connection, key, len(events) + 1, (expected,), attempt, changed)
    if row is None:
        return None
    insert_events(connection, row, row.last_sequence - len(events), [*events, bodies.state_changed(row)])
    topics = {key.run_id}
    if to is RunState.CANCELLING:
        topics.add(control_topic(key.run_id))
    elif to in TERMINAL or to is RunState.QUEUED:
        topics.add(QUEUE)  # it is claimable, or what waited behind it is
    wake_after_commit(connection, topics)
    return row


def _guarded_update(
    connection: Connection,
    key: RunKey,
    event_count: int,
    expected: Collection[RunState],
    attempt: int,
    values: Mapping[str, Any],
) -> AnyRow | None:
    return connection.execute(
        update(runs)
        .where(
            runs.c.tenant_id == key.tenant_id,
            runs.c.run_id == key.run_id,
            runs.c.state.in_(expected),
            runs.c.attempt == attempt,
        )
        .values(last_sequence=runs.c.last_sequence + event_count, **values)
        .returning(*COLUMNS)
    ).one_or_none()


def find_visible(connection: Connection, context: RequestContext, run_id: str) -> AnyRow | None:
    """The run's row if the caller sees its session."""
    return connection.execute(
        select(*COLUMNS).join(sessions, _OF_SESSION).where(visible(context), runs.c.run_id == run_id)
    ).one_or_none()


def find_order(connection: Connection, key: RunKey) -> AnyRow:
    """What the run is to do: its `input` and the `config_json` that it executes, inline or its revision's."""
    pinned = and_(revisions.c.tenant_id == runs.c.tenant_id, revisions.c.revision_id == runs.c.revision_id)
    return connection.execute(
        select(runs.c.input, func.coalesce(runs.c.config_json, revisions.c.config_json).label("config_json"))
        .select_from(runs)
        .outerjoin(revisions, pinned)
        .where(runs.c.tenant_id == key.tenant_id, runs.c.run_id == key.run_id)
    ).one()


def with_tool_calls(connection: Connection, tenant_id: str, rows: Sequence[AnyRow]) -> list[Run]:
    """The runs of these rows (of one tenant), each with the summary of its tool calls."""
    calls: dict[str, list[AnyRow]] = {row.run_id: [] for row in rows}
    found = connection.execute(
        select(
            tool_calls.c.run_id,
            tool_calls.c.call_id,
            tool_calls.c.tool_name,
            tool_calls.c.state,
            tool_calls.c.side_effect,
        )
        .where(tool_calls.c.tenant_id == tenant_id, tool_calls.c.run_id.in_(calls))
        .order_by(tool_calls.c.attempt, tool_calls.c.step, tool_calls.c.call_index)
    )
    for call in found:
        calls[call.run_id].append(call)
    return [Run(row, calls[row.run_id]) for row in rows]


def list_visible(
    connection: Connection, context: RequestContext, chosen: RunFilter, after: tuple[int, str] | None, limit: int
) -> list[AnyRow]:
    """The caller's runs, newest first, after this position (create time, run id)."""
    query = select(*COLUMNS).join(sessions, _OF_SESSION).where(visible(context))
    if after is not None:
        query = query.where(tuple_(runs.c.create_time, runs.c.run_id) < after)
    if chosen.session_id is not None:
        query = query.where(runs.c.session_id == chosen.session_id)
    if chosen.states:
        query = query.where(runs.c.state.in_(chosen.states))
    if chosen.created_from is not None:
        query = query.where(runs.c.create_time >= chosen.created_from)
    if chosen.created_before is not None:
        query = query.where(runs.c.create_time < chosen.created_before)
    for label, value in chosen.labels.items():
        query = query.where(
            select(run_labels.c.run_id)
            .where(
                run_labels.c.tenant_id == runs.c.tenant_id,
                run_labels.c.run_id == runs.c.run_id,
                run_labels.c.label_key == label,
                run_labels.c.label_value == value,
            )
            .exists()
        )
    query = query.order_by(runs.c.create_time.desc(), runs.c.run_id.desc()).limit(limit)
    return list(connection.execute(query))
