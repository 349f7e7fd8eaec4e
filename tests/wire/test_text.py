"""Text from models and tools is repaired visibly and cut whole (SPEC 5.6, 11.1; CASES 12, 20)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnkeeper.wire.text import CUT_MARK, SurrogateJoiner, cut, repair

ANY = st.text(st.characters(), max_size=40) | st.text(
    st.sampled_from("a\x00\ud83d\ude00\ud800\U0001f600é"), max_size=20
)


@pytest.mark.spec("11.1")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("a\x00b", "a\ufffdb"),
        ("\ud83d", "\ufffd"),
        ("\ude00x", "\ufffdx"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        ("\U0001f600é", "\U0001f600é"),
    ],
)
def test_repair(text: str, expected: str) -> None:
    assert repair(text) == expected


@pytest.mark.spec("11.1")
@given(ANY)
def test_what_is_repaired_can_be_stored_and_is_repaired_once(text: str) -> None:
    repaired = repair(text)
    assert "\x00" not in repaired
    assert repaired.encode().decode() == repaired
    assert repair(repaired) == repaired


@pytest.mark.spec("11.1")
@given(ANY, st.lists(st.integers(0, 40), max_size=6))
def test_chunks_read_as_the_whole_would(text: str, cuts: list[int]) -> None:
    borders = sorted({0, len(text), *(at for at in cuts if at < len(text))})
    joiner = SurrogateJoiner()
    pieces = [joiner.feed(text[start:end]) for start, end in pairwise(borders)]
    assert "".join([*pieces, joiner.flush()]) == repair(text)


def test_an_emoji_that_is_split_between_chunks_arrives_whole() -> None:
    joiner = SurrogateJoiner()
    assert [joiner.feed("a\ud83d"), joiner.feed(""), joiner.feed("\ude00b"), joiner.flush()] == [
        "a",
        "",
        "\U0001f600b",
        "",
    ]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.integers(len(CUT_MARK.encode()), 80))
def test_a_cut_is_bounded_marked_and_whole(text: str, limit: int) -> None:
    shown, original = cut(text, limit)
    size = len(text.encode())
    if size <= limit:
        assert (shown, original) == (text, 0)
        return
    assert len(shown.encode()) <= limit
    assert original == size
    assert shown.endswith(CUT_MARK)
    kept = shown.removesuffix(CUT_MARK)
    assert text.startswith(kept)
    assert limit - len(shown.encode()) < 4  # not a code point more would have fitted


def test_a_limit_without_room_for_the_mark_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="room"):
        cut("x" * 100, 3)
