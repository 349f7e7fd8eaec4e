"""What holds of `$ctx` binding whatever a model sends (SPEC 7.3-7.6; CASES 28)."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnkeeper.wire.bindings import TOKENS, faults, segments
from turnkeeper.wire.configs import HttpRequest, ToolConfig

from runner_service.context.body import Unresolved, bind
from runner_service.context.schema import strip_schema

HTTP = HttpRequest("POST", "http://127.0.0.1:1/t")

# Few names, so that what is made up often lies at, above or under a bound path, spelled in one way or another.
SEGMENT = st.sampled_from(["a", "b", "c", "A", "B"])
PATH = st.lists(SEGMENT, min_size=1, max_size=4).map(".".join)
KEY = PATH | st.sampled_from(["__proto__", "constructor", "$ctx", ""])
LEAF = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(sorted(TOKENS))
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEY, inner, max_size=4), max_leaves=12
)
OBJECT = st.dictionaries(KEY, JSON, max_size=4)

CONTEXT = {
    "run": {"id": "$ctx.user.id", "kind": "run"},
    "user": {"id": "ada"},
    "tenant": {"id": ""},
    "workflow": {"is_draft": False},
}
TOKEN = st.sampled_from(["$ctx.run.id", "$ctx.run.kind", "$ctx.user.id", "$ctx.tenant.id", "$ctx.workflow.is_draft"])
BINDINGS = st.dictionaries(PATH, TOKEN, max_size=3).filter(lambda bindings: not list(faults(bindings)))


@st.composite
def tools(draw: st.DrawFn) -> ToolConfig:
    """A tool that a config may have."""
    return ToolConfig(
        "t",
        HTTP,
        args_into=draw(st.none() | PATH),
        body=draw(st.none() | OBJECT),
        bindings=draw(BINDINGS),
    )


def value_of(token: str) -> Any:
    """The value of a token, looked up the plain way."""
    found: Any = CONTEXT
    for part in token.split(".")[1:]:
        found = found[part]
    return found


def read_any_way(node: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """Everything that a reader who takes dotted keys for paths, in any case, may find at a path or under it."""
    if not path:
        yield node
    elif isinstance(node, dict):
        for key, value in node.items():
            parts = segments(key.casefold())
            if parts[: len(path)] == path:
                yield value
            elif path[: len(parts)] == parts:
                yield from read_any_way(value, path[len(parts) :])


def beside(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether one path is the other's, or leads to it."""
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


@pytest.mark.spec("7.4", "7.9")
@given(tools(), OBJECT)
def test_what_a_model_sends_changes_no_bound_path(tool: ToolConfig, arguments: dict[str, Any]) -> None:
    body = bind(tool, arguments, CONTEXT)
    for path, token in tool.bindings.items():
        found = list(read_any_way(body, segments(path.casefold())))
        assert value_of(token) in found
        # Another binding's path may be this one in another case, above it or under it; nothing else may.
        alike = [other for other in tool.bindings if beside(segments(other.casefold()), segments(path.casefold()))]
        assert alike != [path] or found == [value_of(token)]


@pytest.mark.spec("7.4")
@given(tools(), OBJECT)
def test_the_inputs_are_never_changed_nor_shared(tool: ToolConfig, arguments: dict[str, Any]) -> None:
    before = copy.deepcopy((tool, arguments, CONTEXT))
    _spoil(bind(tool, arguments, CONTEXT))
    assert (tool, arguments, CONTEXT) == before


@pytest.mark.spec("7.4")
@given(tools(), OBJECT)
def test_tokens_are_replaced_in_one_pass_and_at_bound_paths_only(tool: ToolConfig, arguments: dict[str, Any]) -> None:
    body = bind(tool, arguments, CONTEXT)
    # A second binding of the result changes nothing, so no value was ever read as a token.
    again = ToolConfig("t", HTTP, bindings=tool.bindings)
    assert bind(again, body, CONTEXT) == body
    unbound = bind(ToolConfig("t", HTTP, args_into=tool.args_into, body=tool.body), arguments, {})
    assert set(_tokens(body)) <= set(_tokens(unbound)) | {"$ctx.user.id"}


@pytest.mark.spec("7.4")
@given(tools(), OBJECT)
def test_the_order_of_bindings_does_not_matter(tool: ToolConfig, arguments: dict[str, Any]) -> None:
    turned = {path: tool.bindings[path] for path in reversed(list(tool.bindings))}
    other = ToolConfig("t", HTTP, args_into=tool.args_into, body=tool.body, bindings=turned)
    assert bind(other, arguments, CONTEXT) == bind(tool, arguments, CONTEXT)


@pytest.mark.spec("7.5")
@given(
    tools(), OBJECT, st.sampled_from(["$ctx.session.id", "$ctx.", "ctx.user.id", "$ctx.user.id.x", "$ctx.__proto__"])
)
def test_an_unresolved_binding_means_no_body(tool: ToolConfig, arguments: dict[str, Any], token: str) -> None:
    lost = ToolConfig("t", HTTP, args_into=tool.args_into, body=tool.body, bindings={**tool.bindings, "z": token})
    with pytest.raises(Unresolved) as caught:
        bind(lost, arguments, CONTEXT)
    assert caught.value.path == "z"


@pytest.mark.spec("7.3")
@given(st.text(max_size=12) | st.text(st.sampled_from("$ctx.run_id"), max_size=14))
def test_only_tokens_resolve(text: str) -> None:
    try:
        body = bind(ToolConfig("t", HTTP, bindings={"x": text}), {}, CONTEXT)
    except Unresolved:
        return
    assert text.startswith("$ctx.")
    assert body["x"] == value_of(text)


SCHEMA = st.recursive(
    st.sampled_from([True, {"type": "string"}, {"$ref": "#/$defs/x"}, {"$ref": "#"}, {"required": ["a", "b"]}]),
    lambda inner: st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(PATH, inner, max_size=3),
            "required": st.lists(PATH, max_size=3),
            "allOf": st.lists(inner, max_size=2),
            "not": inner,
            "dependentSchemas": st.dictionaries(PATH, inner, max_size=2),
        },
    ),
    max_leaves=8,
)


@pytest.mark.spec("7.6")
@given(SCHEMA, SCHEMA, BINDINGS, st.none() | PATH)
def test_no_bound_field_is_left_in_a_schema(root: Any, shared: Any, bindings: dict[str, str], into: str | None) -> None:
    schema = {"properties": {"a": root}, "required": ["a"], "$defs": {"x": shared}}
    before = copy.deepcopy(schema)
    stripped = strip_schema(schema, bindings, into)
    assert schema == before
    under = segments(into) if into else ()
    for path in map(segments, bindings):
        if path[: len(under)] == under != path:
            assert not names_field(stripped, stripped, path[len(under) :], frozenset())


def names_field(schema: Any, root: Any, path: tuple[str, ...], seen: frozenset[Any]) -> bool:
    """Whether a schema names a field at a path or under it, also by its definitions."""
    if not isinstance(schema, dict) or (id(schema), path) in seen:
        return False
    if not path:
        return True
    seen |= {(id(schema), path)}
    alike = [*schema.get("allOf", []), schema.get("not"), *schema.get("dependentSchemas", {}).values()]
    if "$ref" in schema:
        alike.append(root if schema["$ref"] == "#" else root["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    if any(names_field(each, root, path, seen) for each in alike):
        return True
    keys = [*schema.get("required", []), *schema.get("dependentSchemas", {}), *schema.get("properties", {})]
    if any(segments(key)[: len(path)] == path for key in keys):
        return True
    return any(
        names_field(each, root, path[len(segments(key)) :], seen)
        for key, each in schema.get("properties", {}).items()
        if path[: len(segments(key))] == segments(key)
    )


def _spoil(node: Any) -> None:
    for each in list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else ():
        _spoil(each)
    if isinstance(node, dict | list):
        node.clear()


def _tokens(node: Any) -> Iterator[str]:
    if isinstance(node, str) and node.startswith("$ctx."):
        yield node
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _tokens(each)
