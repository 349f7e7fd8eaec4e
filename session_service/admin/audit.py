"""The audit's SQL: entries are only ever added (SPEC 1.5, 1.8)."""

import uuid
from dataclasses import dataclass

from sqlalchemy import Connection, insert
from turnkeeper.wire.context import RequestContext

from session_service.storage.clock import Now
from session_service.storage.schema import audit_entries

DONE = "OK"
"""The result of what was done; of what was not, the reason's name."""


@dataclass(frozen=True, slots=True)
class Deed:
    """What was done: by which RPC or tool, to what, and why."""

    method: str
    target: str
    reason: str


def record(connection: Connection, context: RequestContext, deed: Deed, result: str) -> None:
    """Adds an entry of the caller's, in the transaction that it speaks of."""
    connection.execute(
        insert(audit_entries).values(
            tenant_id=context.tenant_id,
            audit_entry_id=str(uuid.uuid4()),
            operator_user_id=context.user_id,
            method=deed.method,
            reason=deed.reason,
            target=deed.target,
            result=result,
            create_time=Now(),
        )
    )
