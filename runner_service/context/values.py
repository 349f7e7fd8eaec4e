"""A run context as the plain dictionaries that tokens are looked up in (SPEC 7.1, 7.2)."""

from typing import Any

from google.protobuf.message import Message
from turnkeeper.v1 import facts_pb2


def context_values(context: facts_pb2.RunContext) -> dict[str, Any]:
    """The context's values by their keys. Empty leaves and objects are absent; `is_draft` stands by an identity."""
    values = _present(context)
    if "workflow" in values:
        values["workflow"]["is_draft"] = context.workflow.is_draft
    return values


def _present(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if isinstance(value, Message):
            value = _present(value)
        if value and not isinstance(value, bool):
            found[field.name] = value
    return found
