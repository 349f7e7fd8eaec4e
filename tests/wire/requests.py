"""Every request message of the contract, and what the edge says of one."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from turnkeeper.wire import edge
from turnkeeper.wire.errors import FieldViolation, Refused

from tests.wire.conftest import SERVICES

ID = "0199e0d0-1111-7222-8333-4444444444aa"


def violations(message: Message) -> list[FieldViolation]:
    """What is wrong with the message; fails when nothing is."""
    with pytest.raises(Refused) as caught:
        edge.validate(message)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    return list(caught.value.fields)


def wrong(message: Message) -> list[str]:
    """The fields that are wrong with it."""
    return [violation.field for violation in violations(message)]


def _request_messages() -> Iterator[Descriptor]:
    waiting = [method.input_type for service in SERVICES for method in service.methods]
    seen: set[str] = set()
    while waiting:
        message = waiting.pop()
        if message.full_name in seen or message.file.package != "turnkeeper.v1" or message.GetOptions().map_entry:
            continue
        seen.add(message.full_name)
        yield message
        waiting += [field.message_type for field in message.fields if field.message_type is not None]


REQUESTS = {message.name: message for message in _request_messages()}


def new(descriptor: Descriptor) -> Any:
    """An empty message."""
    return GetMessageClass(descriptor)()


def check_field(message: Message, field: FieldDescriptor) -> list[str]:
    """The violations of this one field; others may lack."""
    try:
        edge.validate(message)
    except Refused as refused:
        return [violation.field for violation in refused.fields if violation.field == field.name]
    return []
