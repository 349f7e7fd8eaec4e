"""Which tool calls get an identity token: those of tools that the run's own config marks (SPEC 1.5)."""

from typing import Any

from sqlalchemy import Connection
from turnkeeper.wire import json_text
from turnkeeper.wire.errors import invalid

from session_service.runs.model import AnyRow, RunKey
from session_service.runs.store import find_order


def require_marked(connection: Connection, run: AnyRow, tool_name: str) -> None:
    """Refuses a tool that the stored config does not mark `identity`, whatever the runner says of it."""
    if not _is_marked(find_order(connection, RunKey(run.tenant_id, run.run_id)).config_json, tool_name):
        raise invalid("identity", "the run's config does not mark the tool")


def _is_marked(config_json: str, tool_name: str) -> bool:
    # It was validated before it was stored; what is needed here is one flag of it.
    config: Any = json_text.parse(config_json)
    return any(tool["name"] == tool_name and tool.get("identity", False) for tool in config.get("tools", []))
