"""Which tool calls get an identity token: those of tools that the run's own config marks (SPEC 1.5)."""

from typing import Any

from sqlalchemy import Connection, func, select
from turnkeeper.wire import json_text
from turnkeeper.wire.errors import invalid

from session_service.runs.model import AnyRow
from session_service.storage.schema import revisions, runs


def require_marked(connection: Connection, run: AnyRow, tool_name: str) -> None:
    """Refuses a tool that the stored config does not mark `identity`, whatever the runner says of it."""
    if not _is_marked(_config_of(connection, run), tool_name):
        raise invalid("identity", "the run's config does not mark the tool")


def _config_of(connection: Connection, run: AnyRow) -> str:
    """The config that the run executes: inline, or its revision's."""
    of_run = (revisions.c.tenant_id == runs.c.tenant_id) & (revisions.c.revision_id == runs.c.revision_id)
    text: str = connection.execute(
        select(func.coalesce(runs.c.config_json, revisions.c.config_json))
        .select_from(runs)
        .outerjoin(revisions, of_run)
        .where(runs.c.tenant_id == run.tenant_id, runs.c.run_id == run.run_id)
    ).scalar_one()
    return text


def _is_marked(config_json: str, tool_name: str) -> bool:
    # It was validated before it was stored; what is needed here is one flag of it.
    config: Any = json_text.parse(config_json)
    return any(tool["name"] == tool_name and tool.get("identity", False) for tool in config.get("tools", []))
