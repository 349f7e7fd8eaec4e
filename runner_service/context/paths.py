"""How a key of an object lies to the path of a binding."""

from collections.abc import Iterable

from turnkeeper.wire.bindings import segments

Path = tuple[str, ...]


def beneath(key: str, path: Path) -> Path | None:
    """What is left of a path under this key: nothing when the key is at the path or under it; None: it is elsewhere.

    A dotted key is read as the path that it spells, because a tool may read it so: no spelling leads around a binding.
    Nor does the case of letters, for some tools read keys without it: such a tool may take a key that is on the path
    but for its case in place of what is there, so nothing is left of the path under it, however much follows.
    """
    parts = segments(key)
    shared = min(len(parts), len(path))
    if parts[:shared] == path[:shared]:
        return path[shared:]
    return () if _folded(parts[:shared]) == _folded(path[:shared]) else None


def _folded(path: Path) -> Path:
    return tuple(segment.casefold() for segment in path)


def all_beneath(key: str, paths: Iterable[Path]) -> frozenset[Path]:
    """The same for many paths; the empty path is among the answers when the key itself is bound."""
    return frozenset(left for path in paths if (left := beneath(key, path)) is not None)
