"""Strict JSON, and one canonical form per mathematical value (SPEC 2.2, 7.8)."""

import json
import time
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import rfc8785
from hypothesis import assume, given
from hypothesis import strategies as st
from turnkeeper.wire import json_text
from turnkeeper.wire.json_text import JsonError, canonical, parse

STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SAFE = st.integers(-(2**53) + 1, 2**53 - 1)


def _values(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
        max_leaves=12,
    )


JCS_FLOATS = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: abs(x) < 2**53)
JCS_VALUES = _values(st.none() | st.booleans() | STRINGS | SAFE | JCS_FLOATS)
ALL_VALUES = _values(
    st.none() | st.booleans() | STRINGS | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)


@pytest.mark.spec("2.2")
@given(JCS_VALUES)
def test_it_is_rfc_8785_wherever_that_applies(value: Any) -> None:
    for ensure_ascii in (True, False):
        assert canonical(json.dumps(value, ensure_ascii=ensure_ascii)) == rfc8785.dumps(value)


@pytest.mark.spec("2.2")
@given(ALL_VALUES)
def test_it_is_a_fixed_point_and_keeps_the_value(value: Any) -> None:
    text = json.dumps(value)
    once = canonical(text)
    assert canonical(once.decode()) == once
    assert parse(once.decode()) == parse(text)


@pytest.mark.spec("2.2")
@given(st.dictionaries(STRINGS, st.integers(), min_size=2, max_size=6), st.randoms())
def test_the_order_of_keys_does_not_matter(value: dict[str, int], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical(json.dumps(dict(items), indent=3)) == canonical(json.dumps(value))


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)


@pytest.mark.spec("2.2")
@given(NUMBERS)
def test_an_integral_number_is_an_exact_integer_however_it_is_written(text: str) -> None:
    exact = Fraction(Decimal(text))
    written = canonical(text).decode()
    if exact.denominator == 1:
        assert written == str(exact.numerator)
        assert parse(text) == exact.numerator
    else:
        assert float(written) == float(text)


@pytest.mark.spec("2.2")
@given(NUMBERS, NUMBERS)
def test_numbers_are_equal_by_value(one: str, other: str) -> None:
    first, second = Fraction(Decimal(one)), Fraction(Decimal(other))
    # Numbers that are no integers are doubles: two that round to one double are one.
    assume(first.denominator == 1 and second.denominator == 1)
    assert (canonical(one) == canonical(other)) == (first == second)


@pytest.mark.spec("2.2", "7.8")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.0", "1"),
        ("-0.0", "0"),
        ("-0", "0"),
        ("1e2", "100"),
        ("1E+2", "100"),
        ("0.1e1", "1"),
        ("10", "10"),
        ("9007199254740993", "9007199254740993"),
        ("9007199254740993.0", "9007199254740993"),
        ("9007199254740993e0", "9007199254740993"),
        ("1e30", "1" + "0" * 30),
        ("1e21", "1" + "0" * 21),
        ("9" * 4300, "9" * 4300),
        ("1000000000000000000000.5", "1" + "0" * 21),  # rounds to a double that is integral
        ("1e-7", "1e-7"),
        ("0.1", "0.1"),
        ("123456789.5", "123456789.5"),
        ("1e-400", "0"),
        ("true", "true"),
        ('[1, true, "1"]', '[1,true,"1"]'),
        ('{"\\ud83d\\ude00": 1, "\\ufb33": 2}', '{"\U0001f600":1,"\ufb33":2}'),  # by UTF-16, not by code point
        ('{"b": {}, "a": []}', '{"a":[],"b":{}}'),
        ('"\\u000a\\u00e9/\\/"', '"\\né//"'),
    ],
)
def test_examples(text: str, expected: str) -> None:
    assert canonical(text) == expected.encode()


@pytest.mark.spec("2.2")
def test_a_boolean_equals_no_number() -> None:
    assert len({canonical(text) for text in ("1", "true", '"1"', "[1]", "0", "false", "null")}) == 7


@pytest.mark.spec("2.2", "7.8")
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "\ufeff1",
        "nan",
        "NaN",
        "[NaN]",
        "Infinity",
        "-Infinity",
        "1e309",
        "-1e400",
        "1e999999999999999999999",
        "9" * 4301,
        "-" + "9" * 4301,
        "0." + "1" * 5000,
        '{"a": 1, "a": 1}',
        '{"a": 1, "\\u0061": 2}',
        '[{"b": {"a": 1, "a": 2}}]',
        '"\\ud800"',
        '{"\\udc00": 1}',
        '["a\\ud800b"]',
        '"\ud800"',
        "01",
        "+1",
        ".5",
        "1.",
        "0x1",
        "1 2",
        "'a'",
        '"\n"',
        "[1,]",
        "٣",
    ],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(JsonError) as caught:
        parse(text)
    assert len(str(caught.value)) < 100


@pytest.mark.spec("7.8")
@pytest.mark.parametrize("depth", [65, 66, 500, 5_000, 200_000])
def test_the_depth_is_limited(depth: int) -> None:
    assert parse("[" * 64 + "]" * 64) is not None
    assert parse('{"a":' * 64 + "1" + "}" * 64) is not None
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        with pytest.raises(JsonError, match="64 levels" if depth < 10_000 else "values"):
            parse(opening * depth + ("1" if closing == "}" else "") + closing * depth)


@pytest.mark.spec("2.2")
@pytest.mark.parametrize("text", ["9" * 4301, "-" + "9" * 4301, "1." + "0" * 4400])
def test_the_digits_are_limited_by_us_not_by_the_interpreter(text: str) -> None:
    with pytest.raises(JsonError, match="4300 digits"):
        parse(text)


@pytest.mark.spec("2.2", "7.8")
@pytest.mark.parametrize(
    ("item", "most"),
    [("0", 29_999), ("{}", 29_999), ("true", 29_999), ('",[{:\\""', 29_999), ('{"k":-1.5e3}', 9_999), ("[ ]", 29_999)],
    ids=["numbers", "objects", "words", "strings", "members", "arrays"],
)
def test_the_values_and_keys_of_a_text_are_counted(item: str, most: int) -> None:
    assert parse(f"[{','.join([item] * most)}]") is not None
    with pytest.raises(JsonError, match="30000 values and keys"):
        parse(f"[{','.join([item] * (most + 1))}]")


@pytest.mark.spec("2.2")
@pytest.mark.parametrize(
    ("number", "digits"), [("9e307", 308), ("9" * 4300, 4300), ("1e16", 17), ("-9" + "0" * 32, 34), ("1e22", 23)]
)
def test_large_numbers_are_bounded_by_what_they_are_written_out(number: str, digits: int) -> None:
    most = 128 * 1024 // digits
    assert len(canonical(f"[{','.join([number] * most)}]")) < 140_000
    with pytest.raises(JsonError, match="131072 digits in all"):
        parse(f"[{','.join([number] * (most + 1))}]")


@pytest.mark.spec("2.2")
def test_ids_of_a_usual_length_are_no_large_numbers() -> None:
    assert parse(f"[{','.join(['1234567890123456789'] * 29_000)}]") is not None


@pytest.mark.spec("2.2")
@pytest.mark.parametrize(
    "text", ['"' + '\\"' * 500_000, '"' * 1_000_000, "[" * 1_000_000, "\\" * 1_000_000, " " * 1_000_000]
)
def test_what_is_no_json_is_refused_in_one_pass(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(JsonError):
        parse(text)
    assert time.process_time() - begun < 2


@pytest.mark.spec("7.8")
def test_ints_stay_ints_and_floats_floats() -> None:
    read = parse("[10, 10.5, 10.0, 9007199254740993]")
    assert read == [10, 10.5, 10.0, 9007199254740993]
    assert isinstance(read, list)
    assert [type(item) for item in read] == [int, float, float, int]


def test_strings_walks_keys_and_values() -> None:
    assert sorted(json_text.strings({"a": ["b", {"c": "d"}], "e": 1})) == ["a", "b", "c", "d", "e"]
