"""What a field's value must be: each rule answers the canonical value or raises ValueError saying why (SPEC 11.1).

The reasons never quote the value: it may be long, or not the caller's to see again.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

from google.protobuf import duration_pb2, field_mask_pb2, timestamp_pb2

from turnkeeper.wire import json_text

Rule: TypeAlias = Callable[[Any], Any]

KIB = 1024
MIB = 1024 * 1024

_HEX = "[0-9a-fA-F]"
_DASHED = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
# Every usual spelling of a UUID, and nothing else: uuid.UUID() itself takes far more, for example stray braces.
_UUID = re.compile(rf"{_DASHED}|{_HEX}{{32}}|\{{{_DASHED}\}}|[uU][rR][nN]:[uU][uU][iI][dD]:{_DASHED}")
_MIN_SECONDS, _MAX_SECONDS = -62_135_596_800, 253_402_300_799  # the years 1 to 9999, as Timestamp has them


def uuid_id(value: str) -> str:
    """A UUID in any usual spelling, made lower case with dashes; the nil UUID names nothing."""
    if not _UUID.fullmatch(value):
        raise ValueError("must be a UUID")
    digits = value[-37:-1] if value.endswith("}") else value[-36:]
    digits = digits.replace("-", "").lower()
    if not digits.strip("0"):
        raise ValueError("must not be the nil UUID")
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def pattern(regex: str, description: str) -> Rule:
    """Text that matches `regex` as a whole."""
    compiled = re.compile(regex)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(f"must be {description}")
        return value

    return check


def ascii_text(minimum: int, maximum: int) -> Rule:
    """Printable ASCII of a bounded length."""
    return pattern(rf"[ -~]{{{minimum},{maximum}}}", f"{minimum}-{maximum} printable ASCII characters")


def name(value: str) -> str:
    """A name for people, trimmed; what is blank becomes empty, which means no name."""
    trimmed = _without_nul(value).strip()
    if len(trimmed) > 200:
        raise ValueError("must be 1-200 code points after trimming")
    return trimmed


def points(maximum: int) -> Rule:
    """Text of at most so many code points, without NUL."""

    def check(value: str) -> str:
        if len(_without_nul(value)) > maximum:
            raise ValueError(f"must be at most {maximum} code points")
        return value

    return check


def text(maximum: int) -> Rule:
    """Text of at most so many bytes of UTF-8, without NUL, kept exactly."""

    def check(value: str) -> str:
        # A code point is at most four bytes, so that most texts need not be encoded to be measured.
        if len(_without_nul(value)) * 4 > maximum and len(value.encode()) > maximum:
            raise ValueError(f"must be at most {maximum} bytes of UTF-8")
        return value

    return check


def json_object(maximum: int) -> Rule:
    """A JSON object as text of at most so many bytes, kept exactly."""
    bounded = text(maximum)

    def check(value: str) -> str:
        if not isinstance(json_text.parse(bounded(value)), dict):
            raise ValueError("must be a JSON object")
        return value

    return check


def octets(maximum: int) -> Rule:
    """At most so many bytes."""

    def check(value: bytes) -> bytes:
        if len(value) > maximum:
            raise ValueError(f"must be at most {maximum} bytes")
        return value

    return check


def integer(minimum: int, maximum: int = 2**63 - 1) -> Rule:
    """A whole number in a range, both ends included."""

    def check(value: int) -> int:
        if not minimum <= value <= maximum:
            raise ValueError(f"must be {minimum} or more" if value < minimum else f"must be at most {maximum}")
        return value

    return check


def one_of(*allowed: int) -> Rule:
    """One of these values of an enum."""

    def check(value: int) -> int:
        if value not in allowed:
            raise ValueError("is not a value that is accepted here")
        return value

    return check


def duration(maximum: timedelta, *, zero: bool = False) -> Rule:
    """A well-formed Duration of more than 0 (with `zero`, of 0 or more) and at most `maximum`."""

    def check(value: duration_pb2.Duration) -> duration_pb2.Duration:
        nanos = value.seconds * 1_000_000_000 + value.nanos
        if not -999_999_999 <= value.nanos <= 999_999_999 or value.seconds * value.nanos < 0:
            raise ValueError("is not a well-formed Duration")
        if nanos < 0 or (nanos == 0 and not zero) or nanos > maximum.total_seconds() * 1_000_000_000:
            raise ValueError(f"must be {'0 or' if zero else 'more than 0,'} at most {maximum.total_seconds():.0f} s")
        return value

    return check


def timestamp(value: timestamp_pb2.Timestamp) -> timestamp_pb2.Timestamp:
    """A well-formed Timestamp of the years 1 to 9999."""
    if not (_MIN_SECONDS <= value.seconds <= _MAX_SECONDS and 0 <= value.nanos <= 999_999_999):
        raise ValueError("is not a well-formed Timestamp")
    return value


def mask(*paths: str) -> Rule:
    """A field mask that names at least one of these paths and nothing else."""
    accepted = frozenset(paths)

    def check(value: field_mask_pb2.FieldMask) -> field_mask_pb2.FieldMask:
        if not value.paths or not accepted.issuperset(value.paths):
            raise ValueError(f"must name one or more of: {', '.join(paths)}")
        return value

    return check


def _without_nul(value: str) -> str:
    if "\x00" in value:
        raise ValueError("must not contain NUL")
    return value
