"""The body of a tool's request: model arguments, the static body laid over them (SPEC 7.4)."""

from collections.abc import Mapping
from typing import Any


def compose(arguments: Mapping[str, Any], args_into: str | None, static: Mapping[str, Any] | None) -> dict[str, Any]:
    """A new body; none of the inputs is changed, nor shared with it."""
    placed: dict[str, Any] = _copy(arguments)
    for segment in reversed(args_into.split(".") if args_into else []):
        placed = {segment: placed}
    return _laid_over(placed, static or {})


def _laid_over(under: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in over.items():
        below = under.get(key)
        if isinstance(below, dict) and isinstance(value, Mapping):
            _laid_over(below, value)
        else:
            under[key] = _copy(value)
    return under


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(each) for each in value]
    return value
