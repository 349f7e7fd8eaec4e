"""What a tool call is to a harness: a request and a result, both text."""

from dataclasses import dataclass
from typing import Any

from turnkeeper.v1 import run_pb2


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as the model sees it."""

    name: str
    description: str
    input_schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """What a model asks for. Everything in it is data: the name may be unknown, the arguments may not be JSON."""

    name: str
    arguments_json: str
    model_call_id: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model is told: SUCCEEDED, FAILED, UNKNOWN or NOT_MADE, and a text that is repaired and bounded."""

    state: run_pb2.ToolCallState.ValueType
    text: str


def failed(text: str) -> ToolResult:
    """The result of a call that was refused, or that answered with an error."""
    return ToolResult(run_pb2.TOOL_CALL_STATE_FAILED, text)
