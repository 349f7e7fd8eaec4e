"""The grammar of a tool's `$ctx` bindings, and the keys that a run context has (SPEC 7.1, 7.3, 7.7)."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from google.protobuf.descriptor import Descriptor

from turnkeeper.v1 import facts_pb2
from turnkeeper.wire.json_text import MAX_DEPTH

PREFIX = "$ctx."

_RESERVED = frozenset({"__proto__", "constructor", "prototype"})


def segments(dotted: str) -> tuple[str, ...]:
    """The parts of a dotted path or key; some of them may be empty."""
    return tuple(dotted.split("."))


def is_reserved(segment: str) -> bool:
    """Whether a segment names what some languages keep inside their objects: never a path, never a key."""
    return segment in _RESERVED or (len(segment) >= 4 and segment.startswith("__") and segment.endswith("__"))


def token_segments(token: str) -> tuple[str, ...] | None:
    """The parts after `$ctx.`, or None when the text is no token: another prefix, an empty or a reserved segment."""
    if not token.startswith(PREFIX):
        return None
    parts = segments(token.removeprefix(PREFIX))
    return None if any(not part or is_reserved(part) for part in parts) else parts


def path_fault(path: str) -> str | None:
    """What is wrong with a dotted path in a tool's body; None when nothing is."""
    parts = segments(path)
    if not all(parts):
        return "has an empty segment"
    if any(is_reserved(part) for part in parts):
        return "has a reserved segment"
    if len(parts) > MAX_DEPTH:
        return f"has more than {MAX_DEPTH} segments"
    return None


def faults(bindings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The path of each binding that no revision may have, and why."""
    for path, token in bindings.items():
        if (fault := path_fault(path)) is not None:
            yield path, fault
        if token not in TOKENS:
            yield path, "must be bound to a $ctx token of the run context"
    yield from _overlaps(bindings)


def _overlaps(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    # Sorted by segments, whatever lies under a path follows it, so each outermost path is compared with its own only.
    ordered = sorted(paths, key=segments)
    outer = ordered[0] if ordered else ""
    for _, path in pairwise(ordered):
        if segments(path)[: len(segments(outer))] == segments(outer):
            yield path, "lies under the path of another binding"
        else:
            outer = path


def _keys(message: Descriptor, before: str = "") -> Iterator[str]:
    for field in message.fields:
        if field.message_type is None:
            yield before + field.name
        else:
            yield from _keys(field.message_type, f"{before}{field.name}.")


KEYS = frozenset(_keys(facts_pb2.RunContext.DESCRIPTOR))
"""Every key of a run context, dotted: `workflow.variant.id`."""

TOKENS = frozenset(PREFIX + key for key in KEYS)
"""Every token that a revision may bind."""
