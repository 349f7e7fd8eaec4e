"""Whoever makes a tool's call: which one, its config says."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnkeeper.wire.configs import ToolConfig

from runner_service.tools.builtin import BuiltinTools
from runner_service.tools.grpc_calls import GrpcTools
from runner_service.tools.http import HttpTools
from runner_service.tools.model import ToolResult
from runner_service.tools.outgoing import Outgoing


@dataclass(frozen=True, slots=True)
class ToolCallers:
    """The callers that one turn has: two are the process's, the third speaks with the turn's credential."""

    http: HttpTools
    grpc: GrpcTools
    builtin: BuiltinTools

    async def call(self, tool: ToolConfig, body: Mapping[str, Any], outgoing: Outgoing) -> ToolResult:
        """Sends a bound body and answers what the model is told."""
        if tool.http is not None:
            return await self.http.call(tool, tool.http, body, outgoing)
        if tool.grpc is not None:
            return await self.grpc.call(tool, tool.grpc, body, outgoing)
        return await self.builtin.call(tool, body, outgoing)
