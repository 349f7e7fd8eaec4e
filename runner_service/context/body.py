"""The body of a tool's request: arguments, the static body laid over them, the bindings last (SPEC 7.4)."""

import json
from collections.abc import Mapping
from typing import Any

from turnkeeper.wire.bindings import segments, token_segments
from turnkeeper.wire.configs import ToolConfig

from runner_service.context.paths import Path, beneath


class Unresolved(Exception):
    """A binding has no value, so there is no body and nothing may be sent."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path
        """The path in the body whose binding it is."""


def bind(tool: ToolConfig, arguments: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
    """A new body, which shares nothing with the inputs; Unresolved names the first such path in code point order.

    `context` holds the values of a run context as nested dictionaries; see `values.context_values`.
    """
    body: dict[str, Any] = _copy(arguments)
    for segment in reversed(segments(tool.args_into) if tool.args_into else ()):
        body = {segment: body}
    _lay_over(body, tool.body or {})
    values = {path: _resolve(path, tool.bindings[path], context) for path in sorted(tool.bindings)}
    # All are removed before any is set: a path may be another one's way but for the case of its letters.
    for path in values:
        _remove(body, segments(path))
    for path, value in values.items():
        _set(body, segments(path), value)
    return body


def to_json(body: Mapping[str, Any]) -> str:
    """A body as JSON text: numbers as exact as they came."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _resolve(path: str, token: str, context: Mapping[str, Any]) -> Any:
    parts = token_segments(token)
    if parts is None:
        raise Unresolved(path)
    value: Any = context
    for part in parts:
        if not isinstance(value, dict) or part not in value:
            raise Unresolved(path)
        value = value[part]
    if isinstance(value, list):
        raise Unresolved(path)
    return _copy(value)


def _remove(node: dict[str, Any], path: Path) -> None:
    """Takes out what is at the path, or in its way and no object, in any case of its letters."""
    for key in list(node):
        left = beneath(key, path)
        if left is None:
            continue
        if left and isinstance(node[key], dict):
            _remove(node[key], left)
        else:
            del node[key]


def _set(body: dict[str, Any], path: Path, value: Any) -> None:
    node = body
    for segment in path[:-1]:
        node = node.setdefault(segment, {})
    node[path[-1]] = value


def _lay_over(under: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        below = under.get(key)
        if isinstance(below, dict) and isinstance(value, Mapping):
            _lay_over(below, value)
        else:
            under[key] = _copy(value)


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(each) for each in value]
    return value
