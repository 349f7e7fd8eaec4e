"""JSON as text: a strict reader, and one canonical form per mathematical value (SPEC 2.2, 7.8)."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import count, islice
from json.encoder import encode_basestring
from math import inf, log10
from typing import NoReturn, TypeAlias

import rfc8785

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

MAX_DEPTH = 64
MAX_DIGITS = 4300
MAX_VALUES = 30_000
"""Of values and keys in one text: each costs time on the event loop, however few bytes it has."""
MAX_LARGE_DIGITS = 128 * 1024
"""Of the large numbers of one text, written out: 9e307 is five bytes that stand for 308 digits."""

# Longer than any number that is accepted: digits, sign, point and an exponent.
_MAX_NUMBER = MAX_DIGITS + 32
# Beneath this every integral double is the number that was written; above, digits may be lost.
_EXACT = 2**53
# An integer of so few digits costs no more than any value, and may be written as often.
_SMALL_DIGITS = 32
# Where Python writes the shortest form of a double that is no integer as RFC 8785 does; beneath, the exponents differ.
_PLAIN = 1e-4

# Each match is one value or one key. Never backtracks: what is no JSON is counted in one pass as well.
_VALUE = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[^\s\[\]{}:,"]++|[\[{]', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonError(ValueError):
    """The text is not JSON that can be kept exactly. The message is short and never quotes the text."""


def parse(text: str) -> JsonValue:
    """Reads JSON strictly: no duplicate keys, NaN, overflow or half surrogate pairs, at most 64 levels deep.

    Integers are exact up to 4,300 digits, also when they are written with a fraction or an exponent beyond 2^53. What a
    text may cost is bounded before it is read: by MAX_VALUES, and by MAX_LARGE_DIGITS.
    """
    if len(text) > MAX_VALUES and next(islice(_VALUE.finditer(text), MAX_VALUES, None), None) is not None:
        raise JsonError(f"has more than {MAX_VALUES} values and keys")
    numbers = _Numbers()
    try:
        value: JsonValue = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=numbers.integer,
            parse_float=numbers.real,
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
            parts += (opening, encode_basestring(key).encode(), b":")
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
    elif isinstance(value, str):
        parts.append(encode_basestring(value).encode())
    elif isinstance(value, bool) or value is None:
        parts.append(rfc8785.dumps(value))
    elif isinstance(value, int) or value.is_integer():
        parts.append(str(int(value)).encode())
    elif abs(value) >= _PLAIN:
        parts.append(repr(value).encode())
    else:
        parts.append(rfc8785.dumps(value))


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    read = dict(pairs)
    if len(read) != len(pairs):
        raise JsonError("has an object with a duplicate key")
    return read


class _Numbers:
    """Reads the numbers of one text, and counts the digits of the large ones before it makes them."""

    def __init__(self) -> None:
        self._large_digits = 0

    def integer(self, digits: str) -> int:
        """A number that is written without fraction and exponent."""
        if len(digits.lstrip("-")) > MAX_DIGITS:
            raise JsonError(f"has a number of more than {MAX_DIGITS} digits")
        if len(digits) > _SMALL_DIGITS:
            self._count(len(digits))
        return int(digits)

    def real(self, number: str) -> int | float:
        """Any other number: exact when it is an integer, else the double next to it."""
        if len(number) > _MAX_NUMBER:
            raise JsonError(f"has a number of more than {MAX_DIGITS} digits")
        double = float(number)
        size = abs(double)
        if size < _EXACT:
            return double
        if size == inf:
            raise JsonError("has a number that overflows")
        self._count(max(int(log10(size)) + 1, len(number)))
        exact = Decimal(number)
        integral = int(exact)
        return integral if exact == integral else double

    def _count(self, digits: int) -> None:
        self._large_digits += digits
        if self._large_digits > MAX_LARGE_DIGITS:
            raise JsonError(f"has large numbers of more than {MAX_LARGE_DIGITS} digits in all, written out")


def _constant(_name: str) -> NoReturn:
    raise JsonError("has NaN or Infinity, which JSON does not know")
