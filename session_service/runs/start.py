"""Starting a run: one click starts one run (SPEC 2)."""

import json
import uuid

from sqlalchemy import Connection, func, insert, select
from turnkeeper.v1 import error_reason_pb2 as reasons
from turnkeeper.wire.configs import parse_config
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import FieldViolation, Refused, not_found
from turnkeeper.wire.json_text import JsonError

from session_service.agents.targets import resolve
from session_service.events import bodies
from session_service.events.store import insert_events
from session_service.runs.fingerprint import fingerprint
from session_service.runs.model import AnyRow, Run, RunState, StartOrder
from session_service.runs.pinning import Pinned, pin
from session_service.runs.store import COLUMNS, find_visible, with_tool_calls
from session_service.sessions.access import lock_session
from session_service.sessions.model import MessageDraft, MessageRole
from session_service.sessions.store import add_messages
from session_service.storage.clock import Now
from session_service.storage.database import wake_after_commit
from session_service.storage.hints import QUEUE
from session_service.storage.insert import insert_if_new
from session_service.storage.schema import run_labels, runs, sessions, start_keys
from session_service.storage.write import Storage

ENQUEUE = "ENQUEUE"
QUEUE_RETRY_SECONDS = 5.0


async def start_run(storage: Storage, context: RequestContext, order: StartOrder, max_queued: int) -> tuple[Run, bool]:
    """The run that this key starts or has started, and whether it was started now.

    Run, message and first event commit together, or nothing does and the key stays unused.
    """
    config_fault = _config_fault(order)
    try:
        mark = fingerprint(context.user_id, order)
    except JsonError as error:  # not even JSON: no request of that shape was ever accepted
        raise config_fault or error from None
    run_id = str(uuid.uuid4())

    def change(connection: Connection) -> tuple[Run, bool]:
        key = {"tenant_id": context.tenant_id, "idempotency_key": order.idempotency_key}
        start = {**key, "user_id": context.user_id, "fingerprint": mark, "run_id": run_id, "create_time": Now()}
        if not insert_if_new(connection, start_keys, start):
            return _replay(connection, context, order, mark), False
        session = lock_session(connection, context, order.session_id)
        if config_fault is not None:
            raise config_fault
        pinned = pin(order.config_json, resolve(connection, context.tenant_id, order.references))
        _admit(connection, context.tenant_id, order.policy, max_queued)
        row = _store(connection, context, order, run_id, session, pinned)
        return Run(row, ()), True

    return await storage.write(context.tenant_id, change)


def _config_fault(order: StartOrder) -> Refused | None:
    """What is wrong with the inline config: found before the transaction, raised only when this is no replay."""
    if not order.config_json and not order.references:
        return Refused(reasons.ERROR_REASON_AGENT_REQUIRED)
    try:
        if order.config_json:
            parse_config(order.config_json)
    except Refused as fault:
        return fault
    return None


def _replay(connection: Connection, context: RequestContext, order: StartOrder, mark: str) -> Run:
    """The run that the key started, for the same user with the same fingerprint; the row itself is the verdict."""
    known = connection.execute(
        select(start_keys).where(
            start_keys.c.tenant_id == context.tenant_id, start_keys.c.idempotency_key == order.idempotency_key
        )
    ).one()
    if (known.user_id, known.fingerprint) != (context.user_id, mark):
        raise Refused(reasons.ERROR_REASON_IDEMPOTENCY_KEY_REUSED)
    row = find_visible(connection, context, known.run_id)
    if row is None:
        raise not_found("session")
    return with_tool_calls(connection, context.tenant_id, [row])[0]


def _admit(connection: Connection, tenant_id: str, policy: str, max_queued: int) -> None:
    if policy != ENQUEUE:
        later = FieldViolation("concurrency_policy", f"{policy} is not served yet")
        raise Refused(reasons.ERROR_REASON_UNIMPLEMENTED, fields=[later])
    queued = connection.execute(
        select(func.count()).where(runs.c.tenant_id == tenant_id, runs.c.state == RunState.QUEUED)
    ).scalar_one()
    if queued >= max_queued:
        raise Refused(reasons.ERROR_REASON_QUEUE_FULL, retry_after=QUEUE_RETRY_SECONDS)


def _store(
    connection: Connection, context: RequestContext, order: StartOrder, run_id: str, session: AnyRow, pinned: Pinned
) -> AnyRow:
    row = connection.execute(
        insert(runs)
        .values(
            tenant_id=context.tenant_id,
            run_id=run_id,
            session_id=order.session_id,
            user_id=context.user_id,
            roles_json=json.dumps(context.roles),
            scopes_json=json.dumps(sorted(context.scopes)),
            idempotency_key=order.idempotency_key,
            state=RunState.QUEUED,
            attempt=0,
            turn=0,
            queue_position=_next_queue_position(connection, session),
            input=order.input,
            agent_id=pinned.agent_id,
            variant_id=pinned.variant_id,
            revision_id=pinned.revision_id,
            version=pinned.version,
            is_draft=pinned.is_draft,
            config_json=pinned.config_json,
            labels_json=json.dumps(dict(order.labels)),
            create_time=Now(),
            available_time=Now(),
            deadline=Now() + order.timeout,
            last_sequence=1,
        )
        .returning(*COLUMNS)
    ).one()
    for label, value in order.labels.items():
        label_row = {"tenant_id": context.tenant_id, "label_key": label, "label_value": value, "run_id": run_id}
        connection.execute(insert(run_labels).values(label_row))
    draft = MessageDraft(run_id=run_id, role=MessageRole.USER, text=order.input)
    add_messages(connection, context.tenant_id, order.session_id, [draft])
    insert_events(connection, row, 1, [bodies.state_changed(row)])
    wake_after_commit(connection, (run_id, QUEUE))
    return row


def _next_queue_position(connection: Connection, session: AnyRow) -> int:
    """One more than the last of the session, whose row is locked."""
    position: int = session.last_queue_position + 1
    connection.execute(
        sessions.update()
        .where(sessions.c.tenant_id == session.tenant_id, sessions.c.session_id == session.session_id)
        .values(last_queue_position=position)
    )
    return position
