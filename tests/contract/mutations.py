"""What can be wrong with a valid request, field by field, from the descriptors and the numbers of the contract."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

T = TypeVar("T")
MIB = 1024 * 1024
KIB = 1024


@dataclass(frozen=True)
class Scalar:
    """One singular or repeated scalar of a message, set or not."""

    path: str
    field: FieldDescriptor
    value: Any
    put: Callable[[Any], None]


def _ours(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.file.package == "turnkeeper.v1"


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def fields_of(message: Message) -> Sequence[FieldDescriptor]:
    """The fields of its type."""
    # The stubs name two classes of descriptors, which are one and the same at run time.
    return cast(Sequence[FieldDescriptor], message.DESCRIPTOR.fields)


def messages(message: Message, path: str = "") -> Iterator[tuple[str, Message]]:
    """The message and those of ours that it holds, each with its path ("" or "start.references[0].")."""
    yield path, message
    for field in fields_of(message):
        if not _ours(field) or _is_map(field):
            continue
        if field.is_repeated:
            for place, item in enumerate(getattr(message, field.name)):
                yield from messages(item, f"{path}{field.name}[{place}].")
        elif message.HasField(field.name):
            yield from messages(getattr(message, field.name), f"{path}{field.name}.")


def scalars(message: Message) -> Iterator[Scalar]:
    """Every scalar of the message and what it holds; always in the same order."""
    for path, owner in messages(message):
        for field in fields_of(owner):
            if field.message_type is not None:
                continue
            value = getattr(owner, field.name)
            if not field.is_repeated:
                yield Scalar(path + field.name, field, value, partial(setattr, owner, field.name))
                continue
            for place, item in enumerate(value):
                yield Scalar(f"{path}{field.name}[{place}]", field, item, partial(value.__setitem__, place))


_UUID = "123e4567-e89b-42d3-a456-426614174000"
_UUIDS = frozenset(
    [
        "session_id",
        "run_id",
        "prompt_of_run_id",
        "interaction_id",
        "agent_id",
        "variant_id",
        "revision_id",
        "base_revision_id",
        "share_id",
        "Reference.id",
        "ArtifactIdentity.id",
        "VariantIdentity.id",
        "RevisionIdentity.id",
        "RunIdentity.id",
        "SessionIdentity.id",
    ]
)
_NO_UUIDS = (
    f"{_UUID}\n",
    f" {_UUID}",
    f"{_UUID}{_UUID}",
    "00000000-0000-0000-0000-000000000000",
    "{00000000000000000000000000000000}",
    f"{{{_UUID}",
    f"urn:{_UUID}",
    f"urn:uuid:{{{_UUID}}}",
    _UUID[:-1],
    _UUID[:-1] + "g",
    _UUID.replace("1", "１"),  # a digit, but none of ASCII
    "session-1",
    "1' OR '1'='1",
    "x" * 9000,
)
_UNPRINTABLE = ("é", "tab\t", "line\n", "\x7f")


def spellings(value: str) -> Sequence[str]:
    """Other ways to write the same UUID."""
    plain = value.replace("-", "").upper()
    return (value.upper(), f"{{{value}}}", f"urn:uuid:{value}", plain)


_PRINCIPAL = ("x" * 256, "line\n", "tab\t")
_KEY = ("x" * 256, "x" * 9000, *_UNPRINTABLE)
_CALL_IDS = ("1", "1.1", "1.1.1.1", "a.b.c", "1.1.-1", "1.1.0\n", "1" * 11 + ".1.1", "１.1.1")
_BAD_TEXTS: Mapping[str, Sequence[str]] = {
    # by the contract's comments: what is too long, and what is malformed
    "tenant_id": _PRINCIPAL,
    "user_id": _PRINCIPAL,
    "owner_user_id": _PRINCIPAL,
    "ShareSessionRequest.role": _PRINCIPAL,
    "TenantIdentity.id": _PRINCIPAL,
    "UserIdentity.id": _PRINCIPAL,
    "idempotency_key": _KEY,
    "request_id": _KEY,
    "runner_store": _KEY,
    "page_token": ("x" * 2049, *_UNPRINTABLE),
    "slug": ("x" * 64, "Upper", "-first", "last-", "under_score", "line\n", "é"),
    "RevisionIdentity.slug": ("x" * 101,),
    "name": ("x" * 201, "😀" * 10_000, "e\u0301" * 101),
    "input": ("x" * (MIB + 1), "é" * (MIB // 2) + "x"),
    "AppendMessageRequest.text": ("x" * (MIB + 1), "é" * (MIB // 2) + "x"),
    "Decision.text": ("x" * 10_001,),
    "message": ("x" * 1001,),
    "reason": ("x" * 501,),
    "Deny.reason": ("x" * 2001,),
    "config_json": ("x" * (MIB + 1),),
    "patch_json": ("x" * (MIB + 1), "[]", "1", "{", '{"a": NaN}', '{"a": 1, "a": 2}', '{"a": 1e999}'),
    "tool_json": ("x" * (MIB + 1), "[]", "{", "null"),
    "BindToolBodyRequest.arguments_json": ("x" * (MIB + 1), "[]", "{"),
    "arguments_json": ("x" * (MIB + 1),),
    "remove": ("x" * 1001, ""),
    "version": ("01", "-1", "1.0", "latest", "9" * 19, "0\n", "１"),
    "harness": ("x" * 65,),
    "call_id": _CALL_IDS,
    "tool_call_id": _CALL_IDS,
    "tool_name": ("x" * 256,),
    "model_call_id": ("x" * 1001,),
    "result": ("x" * (MIB + 1),),
    "TextDelta.text": ("x" * (MIB + 1),),
    "ReasoningDelta.text": ("x" * (MIB + 1),),
    "finish_reason": ("x" * 256,),
    "model": ("x" * 256,),
    "prompt": ("x" * (64 * KIB + 1),),
    "RunFailure.message": ("x" * (64 * KIB + 1),),
    "trace_id": ("0" * 31, "0" * 33, "A" * 32),
    "span_id": ("0" * 15, "0" * 17, "A" * 16),
    "RunIdentity.kind": ("other", "run\n"),
}
_BAD_BYTES: Mapping[str, Sequence[bytes]] = {"value": (b"x" * (64 * KIB + 1),)}
_BAD_NUMBERS: Mapping[str, Sequence[int]] = {
    "page_size": (-1, 201, 2**31 - 1, -(2**31)),
    "days": (-1, 36_501),
    "probe": (-1, 0),
    **dict.fromkeys(
        [
            "after_sequence",
            "after_event",
            "number",
            "turn",
            "turn_number",
            "step",
            "original_bytes",
            "input_tokens",
            "output_tokens",
        ],
        (-1,),
    ),
}
# Beside what no enum takes: its zero, unless it means something, and what is not known.
_ZERO_TAKEN = frozenset({"StartRunRequest.concurrency_policy"})
_REFUSED_VALUES: Mapping[str, Sequence[str]] = {
    "AppendMessageRequest.role": ("MESSAGE_ROLE_TOOL",),
    "FinishToolCallRequest.state": ("TOOL_CALL_STATE_STARTED",),
    "StoppedToolCall.state": ("TOOL_CALL_STATE_STARTED", "TOOL_CALL_STATE_SUCCEEDED", "TOOL_CALL_STATE_FAILED"),
}
_MOST_ITEMS: Mapping[str, int] = {
    "references": 8,
    "states": 8,
    "remove": 256,
    "sessions": 200,
    "StartRunRequest.labels": 32,
    "ListRunsRequest.labels": 8,
}
# A report is bounded by the size of a gRPC message only.
_UNBOUNDED = frozenset({"ReportTurnStoppedRequest.events", "ReportTurnStoppedRequest.stopped_tool_calls"})
_BAD_LABELS: Sequence[Mapping[str, str]] = (
    {"": "x"},
    {"x" * 64: "x"},
    {"x": "x" * 256},
    {"é": "x"},
    {"x": "é"},
    {"x\x00": "x"},
    {"x": "\x00"},
)
_DAY = 86_400
_BAD_DURATIONS = ((_DAY, 1), (-1, 0), (0, -1), (1, -1), (1, 1_000_000_000), (2**62, 0))
_BAD_TIMES = ((-62_135_596_801, 0), (253_402_300_800, 0), (0, -1), (0, 1_000_000_000), (2**62, 0))


@dataclass(frozen=True)
class Mutation:
    """One thing that is wrong: the field that must be named, and how to break a request of the case."""

    path: str
    how: str
    apply: Callable[[Message], None]


def _names(field: FieldDescriptor) -> tuple[str, str]:
    """How the tables call a field: "Message.field" before its name alone."""
    return ".".join(field.full_name.split(".")[-2:]), field.name


def _has(table: Container[str], field: FieldDescriptor) -> bool:
    return any(name in table for name in _names(field))


def _entry(table: Mapping[str, T], field: FieldDescriptor) -> T:
    for name in _names(field):
        if name in table:
            return table[name]
    raise KeyError(f"say what is bad for {field.full_name}")


def bad_values(field: FieldDescriptor) -> Sequence[Any]:
    """Values of a scalar that are refused wherever it stands."""
    if field.enum_type is not None:
        zero = () if _has(_ZERO_TAKEN, field) else (0,)
        refused = _entry(_REFUSED_VALUES, field) if _has(_REFUSED_VALUES, field) else ()
        return (99, -1, *zero, *(field.enum_type.values_by_name[name].number for name in refused))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return ()
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _entry(_BAD_BYTES, field)
    if field.type != FieldDescriptor.TYPE_STRING:
        return _entry(_BAD_NUMBERS, field)
    bad = _NO_UUIDS if _has(_UUIDS, field) else _entry(_BAD_TEXTS, field)
    # Set and empty is not the same as absent in a oneof.
    return (*bad, "x\x00", "\x00", *(("",) if field.has_presence and _has(_UUIDS, field) else ()))


def mutations(message: Message, required: str) -> Iterator[Mutation]:
    """Everything that can be wrong with this request."""
    for place, scalar in enumerate(scalars(message)):
        for value in bad_values(scalar.field):
            yield Mutation(scalar.path, _shown(value), _putting(place, value))
    for place, (path, owner) in enumerate(messages(message)):
        for field in fields_of(owner):
            for how, change in _bad_compounds(field, owner):
                yield Mutation(path + field.name, how, _changing(place, change))
    for path in required.split():
        yield Mutation(path, "missing", _clearing(path))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:40]}… of {len(value)}"


def _putting(place: int, value: Any) -> Callable[[Message], None]:
    return lambda message: list(scalars(message))[place].put(value)


def _changing(place: int, change: Callable[[Message], None]) -> Callable[[Message], None]:
    return lambda message: change(list(messages(message))[place][1])


def _clearing(path: str) -> Callable[[Message], None]:
    owner_path, _, name = path.rpartition(".")

    def clear(message: Message) -> None:
        owner = dict(messages(message))[f"{owner_path}." if owner_path else ""]
        if name in owner.DESCRIPTOR.oneofs_by_name:
            chosen = owner.WhichOneof(name)
            assert chosen, f"{path} is not set"
            owner.ClearField(chosen)
        else:
            owner.ClearField(name)

    return clear


def _bad_compounds(field: FieldDescriptor, owner: Message) -> Iterator[tuple[str, Callable[[Message], None]]]:
    """What can be wrong with a list, a map, or one of Google's own messages."""
    name = field.name
    if _is_map(field):
        most: int = _entry(_MOST_ITEMS, field)
        for labels in ({str(number): "" for number in range(most + 1)}, *_BAD_LABELS):
            yield _shown(labels), lambda message, new=labels: _relabel(message, name, new)  # type: ignore[misc]
    elif field.is_repeated:
        if not _has(_UNBOUNDED, field) and (items := list(getattr(owner, name))):
            missing = _entry(_MOST_ITEMS, field) + 1 - len(items)
            yield "too many", lambda message: getattr(message, name).extend(items[:1] * missing)
    elif field.message_type is not None and not _ours(field) and owner.HasField(name):
        kind = field.message_type.name
        if kind == "FieldMask":
            for paths in ([], ["name", "other"], ["Name"], [""], ["name.first"]):
                yield _shown(paths), lambda message, new=paths: _repath(message, name, new)  # type: ignore[misc]
            return
        zero = () if name == "remaining" else ((0, 0),)
        for value in (*zero, *_BAD_DURATIONS) if kind == "Duration" else _BAD_TIMES:
            yield _shown(value), lambda message, new=value: _retime(getattr(message, name), *new)  # type: ignore[misc]


def _relabel(message: Message, name: str, labels: Mapping[str, str]) -> None:
    message.ClearField(name)
    getattr(message, name).update(labels)


def _repath(message: Message, name: str, paths: Sequence[str]) -> None:
    del getattr(message, name).paths[:]
    getattr(message, name).paths.extend(paths)


def _retime(value: Any, seconds: int, nanos: int) -> None:
    value.seconds, value.nanos = seconds, nanos
