"""Text that models and tools produce, made storable and bounded without losing its run (SPEC 5.6, 11.1)."""

import re

REPLACEMENT = "\ufffd"
CUT_MARK = "… [cut]"

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_HIGH_SURROGATES = ("\ud800", "\udbff")


def repair(text: str) -> str:
    """Replaces NUL and half surrogate pairs by U+FFFD, and joins pairs that stand as two halves."""
    if not _UNSTORABLE.search(text):
        return text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return _UNSTORABLE.sub(REPLACEMENT, joined)


def cut(text: str, max_bytes: int) -> tuple[str, int]:
    """Bounds `text` to `max_bytes` of UTF-8, mark included; also its size before the cut, 0 when nothing was cut."""
    encoded = text.encode()
    if len(encoded) <= max_bytes:
        return text, 0
    mark = CUT_MARK.encode()
    if max_bytes < len(mark):
        raise ValueError(f"max_bytes leaves no room for the mark: {max_bytes}")
    return encoded[: max_bytes - len(mark)].decode(errors="ignore") + CUT_MARK, len(encoded)


class SurrogateJoiner:
    """Repairs a stream of chunks whose borders may split a surrogate pair: the emoji arrives whole (CASES 20)."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, chunk: str) -> str:
        """The repaired text that is certain so far; may be empty."""
        text = self._held + chunk
        self._held = ""
        if text and _HIGH_SURROGATES[0] <= text[-1] <= _HIGH_SURROGATES[1]:
            text, self._held = text[:-1], text[-1]
        return repair(text)

    def flush(self) -> str:
        """What was held back when the stream ended: U+FFFD for half a pair, else nothing."""
        text, self._held = repair(self._held), ""
        return text
