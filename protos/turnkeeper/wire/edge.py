"""The one edge validator: every request passes it before any servicer sees it (SPEC 11.1; CASES 15, 20, 23).

It is driven by the descriptors: the rules are in `edge_fields`, and a field without one is a programming error that
shows the first time its message is seen.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from turnkeeper.v1 import error_reason_pb2
from turnkeeper.wire.edge_fields import FIELDS, MAX_ITEMS, REQUIRED
from turnkeeper.wire.edge_rules import Rule, one_of
from turnkeeper.wire.errors import MAX_VIOLATIONS, FieldViolation, Refused

_T = TypeVar("_T")
_Check: TypeAlias = Callable[[Any, str, list[FieldViolation]], None]
"""Checks one field of a message whose path is the second argument, and adds what is wrong to the list."""


def validate(message: Message) -> None:
    """Makes the request's values canonical in place; Refused INVALID_FIELD names all that is wrong, up to a cap."""
    violations: list[FieldViolation] = []
    _walk(message, "", violations)
    if violations:
        raise Refused(error_reason_pb2.ERROR_REASON_INVALID_FIELD, fields=violations)


def _walk(message: Message, path: str, violations: list[FieldViolation]) -> None:
    for check in checks(message.DESCRIPTOR):
        if len(violations) >= MAX_VIOLATIONS:
            return
        check(message, path, violations)


@cache
def checks(descriptor: Descriptor) -> tuple[_Check, ...]:
    """The checks of a message's own fields; LookupError when a field has no rule."""
    required = REQUIRED.get(descriptor.name, frozenset())
    oneofs = [_oneof(oneof.name) for oneof in descriptor.oneofs if oneof.name in required]
    # Booleans are right whatever they say.
    checked = [field for field in descriptor.fields if field.type != FieldDescriptor.TYPE_BOOL]
    return (*oneofs, *(_field(field, field.name in required) for field in checked))


def _field(field: FieldDescriptor, required: bool) -> _Check:
    if field.is_repeated:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return _map(field)
        return _items(field)
    if field.message_type is not None:
        return _message(field, required)
    return _scalar(field, required)


def _oneof(name: str) -> _Check:
    def check(message: Message, path: str, violations: list[FieldViolation]) -> None:
        if message.WhichOneof(name) is None:
            violations.append(FieldViolation(path + name, "is required"))

    return check


def _scalar(field: FieldDescriptor, required: bool) -> _Check:
    name, rule, has_presence = field.name, _rule(field), field.has_presence
    is_text = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)

    def check(message: Message, path: str, violations: list[FieldViolation]) -> None:
        value = getattr(message, name)
        if has_presence and not message.HasField(name):
            return
        try:
            # An empty text is an absent one, except where a oneof says that it was set.
            canonical = value if is_text and not value and not has_presence else rule(value)
        except ValueError as error:
            violations.append(FieldViolation(path + name, str(error)))
            return
        if canonical != value:
            setattr(message, name, canonical)
        if required and not canonical:
            violations.append(FieldViolation(path + name, "is required"))

    return check


def _message(field: FieldDescriptor, required: bool) -> _Check:
    name = field.name
    # Google's own messages are values with one rule; ours are walked.
    is_ours = field.message_type is not None and field.message_type.file.package == "turnkeeper.v1"
    rule = None if is_ours else _rule(field)

    def check(message: Message, path: str, violations: list[FieldViolation]) -> None:
        if not message.HasField(name):
            if required:
                violations.append(FieldViolation(path + name, "is required"))
            return
        value = getattr(message, name)
        if rule is None:
            _walk(value, f"{path}{name}.", violations)
            return
        try:
            rule(value)
        except ValueError as error:
            violations.append(FieldViolation(path + name, str(error)))

    return check


def _items(field: FieldDescriptor) -> _Check:
    name, limit, nested = field.name, _limit(field), field.message_type is not None
    rule = None if nested else _rule(field)

    def check(message: Message, path: str, violations: list[FieldViolation]) -> None:
        items = getattr(message, name)
        if len(items) > limit:
            violations.append(FieldViolation(path + name, f"must have at most {limit} items"))
            return
        for index, item in enumerate(items):
            if len(violations) >= MAX_VIOLATIONS:
                return
            if rule is None:
                _walk(item, f"{path}{name}[{index}].", violations)
                continue
            try:
                canonical = rule(item)
            except ValueError as error:
                violations.append(FieldViolation(f"{path}{name}[{index}]", str(error)))
                continue
            if canonical != item:
                items[index] = canonical

    return check


def _map(field: FieldDescriptor) -> _Check:
    name, limit = field.name, _limit(field)
    rules = {part: FIELDS[f"{name}.{part}"] for part in ("key", "value")}

    def check(message: Message, path: str, violations: list[FieldViolation]) -> None:
        entries = getattr(message, name)
        if len(entries) > limit:
            violations.append(FieldViolation(path + name, f"must have at most {limit} entries"))
            return
        for entry in entries.items():
            for (part, rule), value in zip(rules.items(), entry, strict=True):
                try:
                    rule(value)
                except ValueError as error:
                    # Which entry is not said: its key may be what is wrong.
                    violations.append(FieldViolation(path + name, f"has a {part} that {error}"))
                    return

    return check


def _rule(field: FieldDescriptor) -> Rule:
    if field.enum_type is not None:
        known = [value.number for value in field.enum_type.values if value.number]
        return FIELDS.get(_qualified(field)) or one_of(*known)
    rule = _named(FIELDS, field)
    if rule is None:
        raise LookupError(f"no edge rule for {field.full_name}")
    return rule


def _limit(field: FieldDescriptor) -> int:
    limit = _named(MAX_ITEMS, field)
    if limit is None:
        raise LookupError(f"no item limit for {field.full_name}")
    return limit


def _named(table: Mapping[str, _T], field: FieldDescriptor) -> _T | None:
    by_message = table.get(_qualified(field))
    return table.get(field.name) if by_message is None else by_message


def _qualified(field: FieldDescriptor) -> str:
    return ".".join(field.full_name.split(".")[-2:])
