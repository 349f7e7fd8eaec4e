"""Reading runs: one by its id, or a page of them."""

from collections.abc import Sequence

from sqlalchemy import Connection
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import not_found

from session_service.runs.model import Run, RunFilter
from session_service.runs.store import find_visible, list_visible, with_tool_calls
from session_service.storage.write import Storage


async def get_run(storage: Storage, context: RequestContext, run_id: str) -> Run:
    """The run as it stands; NOT_FOUND when the caller does not see its session."""

    def query(connection: Connection) -> Run:
        row = find_visible(connection, context, run_id)
        if row is None:
            raise not_found("run")
        return with_tool_calls(connection, context.tenant_id, [row])[0]

    return await storage.read(context.tenant_id, query)


async def list_runs(
    storage: Storage, context: RequestContext, chosen: RunFilter, after: tuple[int, str] | None, limit: int
) -> Sequence[Run]:
    """At most `limit` of the caller's runs, newest first, from after this position on."""

    def query(connection: Connection) -> Sequence[Run]:
        rows = list_visible(connection, context, chosen, after, limit)
        return with_tool_calls(connection, context.tenant_id, rows)

    return await storage.read(context.tenant_id, query)
