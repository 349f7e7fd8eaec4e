"""JSON as text: a strict reader, and one canonical form per mathematical value (SPEC 2.2, 7.8)."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import count
from typing import NoReturn, TypeAlias

import rfc8785

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

MAX_DEPTH = 64
MAX_DIGITS = 4300

# Longer than any number that is accepted: digits, sign, point and an exponent.
_MAX_NUMBER = MAX_DIGITS + 32
# Beneath this every integral double is the number that was written; above, digits may be lost.
_EXACT = 2**53

_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonError(ValueError):
    """The text is not JSON that can be kept exactly. The message is short and never quotes the text."""


def parse(text: str) -> JsonValue:
    """Reads JSON strictly: no duplicate keys, NaN, overflow or half surrogate pairs, at most 64 levels deep.

    Integers are exact up to 4,300 digits, also when they are written with a fraction or an exponent beyond 2^53.
    """
    try:
        value: JsonValue = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_real,
            parse_constant=_constant,
        )
    except JsonError:
        raise
    except RecursionError:
        raise JsonError(f"is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise JsonError(f"is not JSON{where}") from None
    for string in strings(value):
        if not string.isascii() and _SURROGATE.search(string):
            raise JsonError("has half a surrogate pair")
    return value


def canonical(text: str) -> bytes:
    """The canonical form of JSON text; raises JsonError for what `parse` refuses."""
    return encode(parse(text))


def encode(value: JsonValue) -> bytes:
    """The canonical form: RFC 8785, except that integral numbers are written as exact integers at any size."""
    parts: list[bytes] = []
    _write(value, parts)
    return b"".join(parts)


def strings(value: JsonValue) -> Iterator[str]:
    """All keys and strings in a value; JsonError when it is nested too deep."""
    level: list[JsonValue] = [value]
    for depth in count():
        deeper: list[JsonValue] = []
        for each in level:
            if isinstance(each, str):
                yield each
            elif isinstance(each, list | dict) and depth == MAX_DEPTH:
                raise JsonError(f"is nested deeper than {MAX_DEPTH} levels")
            elif isinstance(each, list):
                deeper += each
            elif isinstance(each, dict):
                yield from each
                deeper += each.values()
        if not deeper:
            return
        level = deeper


def _write(value: JsonValue, parts: list[bytes]) -> None:
    if isinstance(value, dict):
        opening = b"{"
        # RFC 8785 sorts by UTF-16 code units, which is not the order of code points.
        for key in sorted(value, key=lambda key: key.encode("utf-16-be")):
            parts += (opening, rfc8785.dumps(key), b":")
            _write(value[key], parts)
            opening = b","
        parts.append(b"}" if value else b"{}")
    elif isinstance(value, list):
        opening = b"["
        for item in value:
            parts.append(opening)
            _write(item, parts)
            opening = b","
        parts.append(b"]" if value else b"[]")
    elif isinstance(value, bool) or value is None or isinstance(value, str):
        parts.append(rfc8785.dumps(value))
    elif isinstance(value, int) or value.is_integer():
        parts.append(str(int(value)).encode())
    else:
        parts.append(rfc8785.dumps(value))


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    read = dict(pairs)
    if len(read) != len(pairs):
        raise JsonError("has an object with a duplicate key")
    return read


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise JsonError(f"has a number of more than {MAX_DIGITS} digits")
    return int(digits)


def _real(number: str) -> int | float:
    if len(number) > _MAX_NUMBER:
        raise JsonError(f"has a number of more than {MAX_DIGITS} digits")
    double = float(number)
    if double in (float("inf"), float("-inf")):
        raise JsonError("has a number that overflows")
    if abs(double) < _EXACT:
        return double
    exact = Decimal(number)
    integral = int(exact)
    return integral if exact == integral else double


def _constant(_name: str) -> NoReturn:
    raise JsonError("has NaN or Infinity, which JSON does not know")
