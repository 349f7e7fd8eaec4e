"""Built-in tools: carried out by the session service, under the turn's own credential (SPEC 8.6, 8.7)."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from google.protobuf.field_mask_pb2 import FieldMask
from turnkeeper.v1 import error_reason_pb2, run_pb2
from turnkeeper.v1.agent_service_pb2 import UpdateAgentRequest, UpdateAgentResponse
from turnkeeper.v1.session_service_pb2 import UpdateSessionRequest, UpdateSessionResponse
from turnkeeper.wire.builtins import RENAME_SESSION
from turnkeeper.wire.configs import ToolConfig
from turnkeeper.wire.errors import CATALOG, PREFIX, ErrorDetail
from turnkeeper.wire.text import repair

from runner_service.tools.model import ToolResult, failed
from runner_service.tools.outgoing import Outgoing

DONE = "Done."


class ToolRefused(Exception):
    """The session service refused what a tool asked for, which is the model's to know and no end of the turn."""

    def __init__(self, detail: ErrorDetail) -> None:
        super().__init__(detail.reason)
        self.detail = detail


class NotAnswered(Exception):
    """The session service did not answer, so it is not known whether it did what was asked."""


class BuiltinPort(Protocol):
    """What built-in tools ask of the session service."""

    async def update_session(self, request: UpdateSessionRequest) -> UpdateSessionResponse:
        """Renames a session; raises ToolRefused or NotAnswered."""

    async def update_agent(self, request: UpdateAgentRequest) -> UpdateAgentResponse:
        """Renames an agent; raises ToolRefused or NotAnswered."""


class BuiltinTools:
    """The built-in tools of one turn."""

    def __init__(self, port: BuiltinPort) -> None:
        self._port = port

    async def call(self, tool: ToolConfig, body: Mapping[str, Any], outgoing: Outgoing) -> ToolResult:
        """Does what a bound body says and answers what the model is told; only the turn's own end is raised."""
        name = body.get("name")
        if not isinstance(name, str):
            return failed("The argument name must be a text.")
        try:
            async with asyncio.timeout(outgoing.seconds):
                result = await self._rename(tool.name, body, repair(name), outgoing.call_id)
        except ToolRefused as refused:
            return failed(_told(refused.detail))
        except (NotAnswered, TimeoutError):
            return ToolResult(run_pb2.TOOL_CALL_STATE_UNKNOWN, "The session service did not answer.")
        return ToolResult(run_pb2.TOOL_CALL_STATE_SUCCEEDED, result or DONE)

    async def _rename(self, tool_name: str, body: Mapping[str, Any], name: str, call_id: str) -> str:
        mask = FieldMask(paths=["name"])
        # The ids are bound by the server; the service checks them once more against the credential.
        if tool_name == RENAME_SESSION:
            session = UpdateSessionRequest(session_id=body["session_id"], name=name, update_mask=mask)
            session.automatic_name, session.tool_call_id = True, call_id
            return (await self._port.update_session(session)).tool_result
        agent = UpdateAgentRequest(agent_id=body["agent_id"], name=name, update_mask=mask)
        agent.automatic_name, agent.tool_call_id = True, call_id
        return (await self._port.update_agent(agent)).tool_result


def _told(detail: ErrorDetail) -> str:
    """The reason in the contract's words, and the fields that are wrong."""
    reason = error_reason_pb2.ErrorReason.DESCRIPTOR.values_by_name.get(PREFIX + detail.reason)
    known = "" if reason is None else f": {CATALOG[error_reason_pb2.ErrorReason.Value(reason.name)][1]}"
    fields = "".join(f" {each.field} {each.description}." for each in detail.fields)
    return f"{detail.reason or detail.code.name}{known}{fields}"
