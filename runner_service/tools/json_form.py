"""Messages and their JSON form, of contracts that are only known at run time (SPEC 7.10)."""

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_ANY = "google.protobuf.Any"
_TYPE = "@type"


class NotItsForm(Exception):
    """A body is not the JSON form of the message; the message says where, in the body's own words."""


def serialize(descriptor: Descriptor, body: Mapping[str, Any]) -> bytes:
    """The message of this JSON form; a field that the message lacks, or that is given twice, is refused."""
    try:
        _require_once(descriptor, body)
        message = GetMessageClass(descriptor)()
        json_format.ParseDict(dict(body), message, descriptor_pool=_pool(descriptor))
        return message.SerializeToString()
    except (json_format.ParseError, TypeError, ValueError) as error:
        # Some values that do not fit are told by Python's own errors.
        raise NotItsForm(str(error)) from None


def to_json(descriptor: Descriptor, serialized: bytes) -> str:
    """The JSON form of a serialized message, on one line; DecodeError when it is not one."""
    message: Message = GetMessageClass(descriptor).FromString(serialized)
    try:
        return json_format.MessageToJson(message, indent=None, ensure_ascii=False, descriptor_pool=_pool(descriptor))
    except (TypeError, ValueError, json_format.SerializeToJsonError):
        # For example an Any of a type that the server's description does not have.
        return "The tool answered OK, but its answer has no JSON form."


def _require_once(descriptor: Descriptor, value: Any) -> None:
    """Refuses two spellings of one field: the model's could undo what the server bound under the other (SPEC 7.4)."""
    if not isinstance(value, Mapping):
        return
    if descriptor.full_name == _ANY:
        inner = _type_of(descriptor, value)
        if inner is not None:
            _require_once(inner, {key: each for key, each in value.items() if key != _TYPE})
        return
    by_json_name = {field.json_name: field for field in descriptor.fields}
    seen: set[int] = set()
    for key, each in value.items():
        field = by_json_name.get(key) or descriptor.fields_by_name.get(key)
        if field is None:
            continue
        if field.number in seen:
            raise NotItsForm(f"{key!r} is a field that is given already, under its other name")
        seen.add(field.number)
        if field.message_type is not None:
            _require_once_below(field, field.message_type, each)


def _require_once_below(field: FieldDescriptor, message_type: Descriptor, value: Any) -> None:
    if message_type.GetOptions().map_entry:
        if not isinstance(value, Mapping):
            return
        keys = message_type.fields_by_name["key"]
        if keys.type != FieldDescriptor.TYPE_STRING and any(_is_odd(key) for key in value):
            raise NotItsForm(f"{field.name!r} has a key that is not in its plainest form")
        inner = message_type.fields_by_name["value"].message_type
        values: Iterable[Any] = value.values()
    else:
        inner = message_type
        values = value if isinstance(value, list) else [value]
    if inner is not None:
        for each in values:
            _require_once(inner, each)


def _is_odd(key: str) -> bool:
    """Whether a map's key that is no text is spelled so that another spelling may be the same key."""
    try:
        return key not in {"true", "false"} and str(int(key)) != key
    except ValueError:
        return True


def _type_of(descriptor: Descriptor, value: Mapping[str, Any]) -> Descriptor | None:
    try:
        found: Descriptor = _pool(descriptor).FindMessageTypeByName(str(value.get(_TYPE, "")).rpartition("/")[2])
    except KeyError:
        return None
    return found


def _pool(descriptor: Descriptor) -> Any:
    return descriptor.file.pool
