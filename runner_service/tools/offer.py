"""Which tools a harness is offered: those of the config whose scopes the caller has (SPEC 1.5)."""

from collections.abc import Iterable, Mapping

from turnkeeper.wire.configs import ToolConfig

from runner_service.tools.model import OfferedTool


def allowed(tools: Iterable[ToolConfig], scopes: frozenset[str]) -> Mapping[str, ToolConfig]:
    """By name, the tools that a caller with these scopes may use. The others do not exist for it."""
    return {tool.name: tool for tool in tools if scopes.issuperset(tool.scopes)}


def offered(tools: Iterable[ToolConfig]) -> tuple[OfferedTool, ...]:
    """The tools as a model sees them."""
    return tuple(OfferedTool(tool.name, tool.description, dict(tool.input_schema)) for tool in tools)
