"""The built-in tools: what a model sees of each, what it needs, and what the server binds (SPEC 8.6).

A config names one as `{"name": "rename_session", "builtin": true}`. Its target is bound by `$ctx` like any tool's, and
it is carried out by the session service, under the turn's own credential.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NAME = {"type": "string", "minLength": 1, "maxLength": 200, "description": "The new name, short and telling."}
RENAME_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"name": _NAME},
    "required": ["name"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Builtin:
    """A tool whose name is fixed. `scope` is what its RPC needs; `bindings` as in a tool's config."""

    description: str
    input_schema: Mapping[str, Any]
    scope: str
    bindings: Mapping[str, str]


RENAME_SESSION = "rename_session"
RENAME_AGENT = "rename_agent"

BUILTINS: Mapping[str, Builtin] = {
    RENAME_SESSION: Builtin(
        "Gives this conversation a name. It fails when a user has chosen the name.",
        RENAME_SCHEMA,
        "sessions:write",
        {"session_id": "$ctx.session.id"},
    ),
    RENAME_AGENT: Builtin(
        "Gives this agent a name. It fails when a user has chosen the name.",
        RENAME_SCHEMA,
        "agents:write",
        {"agent_id": "$ctx.workflow.artifact.id"},
    ),
}
