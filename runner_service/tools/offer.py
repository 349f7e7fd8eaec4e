"""Which tools a harness is offered: those of the config whose scopes the caller has (SPEC 1.5)."""

from collections.abc import Iterable, Mapping

from turnkeeper.wire.configs import ToolConfig

from runner_service.context.schema import strip_schema
from runner_service.tools.model import OfferedTool


def allowed(tools: Iterable[ToolConfig], scopes: frozenset[str]) -> Mapping[str, ToolConfig]:
    """By name, the tools that a caller with these scopes may use. The others do not exist for it."""
    return {tool.name: tool for tool in tools if scopes.issuperset(tool.scopes)}


def offered(tools: Iterable[ToolConfig]) -> tuple[OfferedTool, ...]:
    """The tools as a model sees them: without the fields that the server binds (SPEC 7.6)."""
    return tuple(
        OfferedTool(tool.name, tool.description, strip_schema(tool.input_schema, tool.bindings, tool.args_into))
        for tool in tools
    )
