"""The schema that a model sees of a tool: without the fields that the server binds (SPEC 7.6)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from turnkeeper.wire.bindings import segments

from runner_service.context.paths import Path, all_beneath

# A schema that needs more copies of its definitions than this is shown as any object: hidden fields stay hidden.
MAX_DEFINITIONS = 1000

_LISTS = ("allOf", "anyOf", "oneOf")
# A condition that speaks of a bound field means nothing without it, and takes what hangs on it along.
_CONDITIONS = (("not", ()), ("if", ("then", "else")))
_DEFINITIONS = ("$defs", "definitions")

Paths = frozenset[Path]


def strip_schema(schema: Mapping[str, Any], bindings: Iterable[str], args_into: str | None) -> dict[str, Any]:
    """A new schema without the bound fields and their `required` entries; the given one is not changed."""
    root = segments(args_into) if args_into else ()
    paths = set()
    for path in map(segments, bindings):
        if path == root[: len(path)]:
            # The binding replaces everything that the model could say.
            return {"type": "object", "properties": {}}
        if path[: len(root)] == root:
            paths.add(path[len(root) :])
    return _Stripped(schema, frozenset(paths)).whole() if paths else dict(schema)


class _Stripped:
    """One schema without some fields. Definitions on the way are copied: elsewhere they may be used whole."""

    def __init__(self, schema: Mapping[str, Any], paths: Paths) -> None:
        self._schema = schema
        self._paths = paths
        self._names: dict[tuple[str, Paths], str] = {}
        self._pending: list[tuple[str, Any, Paths]] = []

    def whole(self) -> dict[str, Any]:
        """The schema, with the definitions that it needs."""
        stripped: dict[str, Any] = self._without(self._schema, self._paths)
        made: dict[str, Any] = {}
        while self._pending:
            if len(self._names) > MAX_DEFINITIONS:
                return {"type": "object"}
            name, target, paths = self._pending.pop()
            made[name] = self._without(target, paths)
        if made:
            stripped["$defs"] = {**_definitions(stripped, "$defs"), **made}
        return _pruned(stripped)

    def _without(self, schema: Any, paths: Paths) -> Any:
        if not paths or not isinstance(schema, Mapping):
            return schema
        stripped = dict(schema)
        _change(stripped, "properties", Mapping, lambda found: self._properties(found, paths))
        for keyword in _LISTS:
            _change(stripped, keyword, list, lambda found: [self._without(each, paths) for each in found])
        for condition, branches in _CONDITIONS:
            if self._without(stripped.get(condition), paths) != stripped.get(condition):
                stripped = {key: each for key, each in stripped.items() if key not in {condition, *branches}}
            for branch in branches:
                _change(stripped, branch, Mapping, lambda found: self._without(found, paths))
        _change(stripped, "$ref", str, lambda found: self._reference(found, paths))
        _change(stripped, "required", list, lambda found: _unbound(found, paths))
        _change(
            stripped,
            "dependentSchemas",
            Mapping,
            lambda found: {key: self._without(found[key], paths) for key in _unbound(found, paths)},
        )
        _change(
            stripped,
            "dependentRequired",
            Mapping,
            lambda found: {key: _unbound(found[key], paths) for key in _unbound(found, paths)},
        )
        if stripped.get("required") == []:
            del stripped["required"]
        return stripped

    def _properties(self, properties: Mapping[str, Any], paths: Paths) -> dict[str, Any]:
        return {key: self._without(properties[key], all_beneath(key, paths)) for key in _unbound(properties, paths)}

    def _reference(self, pointer: str, paths: Paths) -> str:
        if (pointer, paths) not in self._names:
            target = self._target(pointer)
            if target is None:
                return pointer
            name = f"unbound_{len(self._names) + 1}"
            while name in _definitions(self._schema, "$defs"):
                name += "_"
            self._names[pointer, paths] = name
            self._pending.append((name, target, paths))
        return f"#/$defs/{self._names[pointer, paths]}"

    def _target(self, pointer: str) -> Mapping[str, Any] | None:
        if pointer != "#" and not pointer.startswith("#/"):
            return None
        found: Any = {key: value for key, value in self._schema.items() if pointer != "#" or key not in _DEFINITIONS}
        for part in pointer.split("/")[1:]:
            found = found.get(_key(part)) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else None


def _change(schema: dict[str, Any], keyword: str, kind: type, change: Callable[[Any], Any]) -> None:
    # What is no JSON Schema is left as it is: whether to take it is for the model's service to say.
    if isinstance(schema.get(keyword), kind):
        schema[keyword] = change(schema[keyword])


def _unbound(names: Iterable[Any], paths: Paths) -> list[Any]:
    return [name for name in names if not isinstance(name, str) or () not in all_beneath(name, paths)]


def _key(part: str) -> str:
    return unquote(part).replace("~1", "/").replace("~0", "~")


def _pruned(schema: dict[str, Any]) -> dict[str, Any]:
    """Without definitions that nothing refers to any more, for those may show what was taken out."""
    used: set[tuple[str, str]] = set()
    pending: list[Any] = [{key: value for key, value in schema.items() if key not in _DEFINITIONS}]
    while pending:
        found = pending.pop()
        if isinstance(found, list | dict):
            pending += found.values() if isinstance(found, dict) else found
        if isinstance(found, dict) and isinstance(pointer := found.get("$ref"), str):
            _, *parts = pointer.split("/")
            if len(parts) > 1 and (place := (parts[0], _key(parts[1]))) not in used:
                used.add(place)
                pending.append(_definitions(schema, place[0]).get(place[1]))
    kept = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    for keyword in _DEFINITIONS:
        if left := {key: each for key, each in _definitions(schema, keyword).items() if (keyword, key) in used}:
            kept[keyword] = left
    return kept


def _definitions(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    found = schema.get(keyword)
    return found if isinstance(found, Mapping) else {}
