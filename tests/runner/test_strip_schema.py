"""What a model sees of a tool whose fields are bound (SPEC 7.6; CASES 28)."""

import copy
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from turnkeeper.wire.configs import HttpRequest, ToolConfig

from runner_service.context.schema import MAX_DEFINITIONS, strip_schema
from runner_service.tools.offer import offered

TEXT = {"type": "string"}


def an_object(required: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    """A schema of an object."""
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


@pytest.mark.spec("7.6")
@pytest.mark.parametrize(
    ("schema", "paths", "into", "seen"),
    [
        (an_object(("v", "q"), v=TEXT, q=TEXT), ["v"], None, an_object(("q",), q=TEXT)),
        (an_object(("v",), v=TEXT), ["v"], None, an_object()),
        (an_object(("v",), v=TEXT), ["x"], None, an_object(("v",), v=TEXT)),
        (an_object(("v",), v=TEXT), [], None, an_object(("v",), v=TEXT)),
        ({}, ["v"], None, {}),
        # nested, with its own required entries
        (
            an_object(("a",), a=an_object(("b", "c"), b=TEXT, c=TEXT)),
            ["a.b"],
            None,
            an_object(("a",), a=an_object(("c",), c=TEXT)),
        ),
        # dotted names of properties are read as the paths that they spell
        (an_object(("a.b",), **{"a.b": TEXT, "a.c": TEXT}), ["a.b"], None, an_object(**{"a.c": TEXT})),
        # and so are those in another case, which a body loses with all that is in them
        (
            an_object(("V", "A"), V=TEXT, A=an_object(b=TEXT, c=TEXT), q=TEXT),
            ["v", "a.b"],
            None,
            an_object(q=TEXT),
        ),
        # under args_into, beside it, at it and above it
        (an_object(("v",), v=TEXT, q=TEXT), ["in.v"], "in", an_object(q=TEXT)),
        (an_object(("v",), v=TEXT), ["v"], "in", an_object(("v",), v=TEXT)),
        (an_object(("v",), v=TEXT), ["in"], "in", an_object()),
        (an_object(("v",), v=TEXT), ["in"], "in.put", an_object()),
        # wherever else a field of the same object can stand
        (
            {"allOf": [an_object(("v",), v=TEXT)], "anyOf": [{"required": ["v"]}, {"required": ["q"]}]},
            ["v"],
            None,
            {"allOf": [an_object()], "anyOf": [{}, {"required": ["q"]}]},
        ),
        ({"not": {"required": ["v"]}, "type": "object"}, ["v"], None, {"type": "object"}),
        (
            {"if": {"required": ["v"]}, "then": {"required": ["q"]}, "else": {"required": ["r"]}},
            ["v"],
            None,
            {},
        ),
        (
            {"if": {"required": ["q"]}, "then": {"required": ["v", "r"]}},
            ["v"],
            None,
            {"if": {"required": ["q"]}, "then": {"required": ["r"]}},
        ),
        (
            {"dependentRequired": {"v": ["q"], "q": ["v", "r"]}, "dependentSchemas": {"v": {}, "q": an_object(v=TEXT)}},
            ["v"],
            None,
            {"dependentRequired": {"q": ["r"]}, "dependentSchemas": {"q": an_object()}},
        ),
        # what is no JSON Schema is passed on for the model's service to judge
        ({"properties": 7, "required": "v", "$defs": 3}, ["v"], None, {"properties": 7, "required": "v"}),
    ],
)
def test_bound_fields_are_not_in_the_schema(
    schema: dict[str, Any], paths: list[str], into: str | None, seen: dict[str, Any]
) -> None:
    before = copy.deepcopy(schema)
    assert strip_schema(schema, paths, into) == seen
    assert schema == before


@pytest.mark.spec("7.6")
def test_a_definition_is_stripped_only_where_its_field_is_bound() -> None:
    schema = {
        **an_object(at={"$ref": "#/$defs/p"}, other={"$ref": "#/$defs/p"}),
        "$defs": {"p": an_object(("v",), v=TEXT)},
    }
    stripped = strip_schema(schema, ["at.v"], None)
    validator = Draft202012Validator(stripped)
    assert validator.is_valid({"at": {}})
    assert not validator.is_valid({"other": {}})
    assert stripped["$defs"]["p"] == an_object(("v",), v=TEXT)
    assert json.dumps(stripped).count('"v"') == 2  # those of the definition that is still used


@pytest.mark.spec("7.6")
def test_a_definition_that_nobody_uses_any_more_goes() -> None:
    schema = {**an_object(at={"$ref": "#/definitions/p"}), "definitions": {"p": an_object(("v",), v=TEXT), "q": TEXT}}
    assert '"v"' not in json.dumps(strip_schema(schema, ["at.v"], None))


@pytest.mark.spec("7.6")
def test_a_schema_that_refers_to_itself() -> None:
    node = an_object(("v",), v=TEXT, next={"$ref": "#"})
    stripped = strip_schema(node, ["v", "next.v"], None)
    assert Draft202012Validator(stripped).is_valid({"next": {"next": {}}})
    assert '"v"' not in json.dumps(stripped)


@pytest.mark.spec("7.6")
def test_references_in_a_circle_end() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    assert strip_schema(schema, ["v"], None)["$ref"] == "#/$defs/unbound_1"


def test_a_name_that_is_taken_is_not_given_again() -> None:
    mine = {"$ref": "#/$defs/p"}
    schema = {
        **an_object(at=mine, x={"$ref": "#/$defs/unbound_1"}),
        "$defs": {"p": an_object(v=TEXT), "unbound_1": TEXT},
    }
    stripped = strip_schema(schema, ["at.v"], None)
    assert stripped["$defs"] == {"unbound_1": TEXT, "unbound_1_": an_object()}


def test_references_elsewhere_stay() -> None:
    for pointer in ("https://schemas.example/x", "#anchor", "#/$defs/none", "#/$defs"):
        assert strip_schema({"$ref": pointer}, ["v"], None) == {"$ref": pointer}


@pytest.mark.spec("7.6")
def test_a_schema_of_too_many_definitions_shows_nothing() -> None:
    chain = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(MAX_DEFINITIONS + 2)}
    assert strip_schema({"$ref": "#/$defs/d0", "$defs": chain}, ["v"], None) == {"type": "object"}


@pytest.mark.spec("7.6")
def test_that_is_the_schema_that_is_offered() -> None:
    tool = ToolConfig(
        "t",
        HttpRequest("POST", "http://127.0.0.1:1/t"),
        input_schema=an_object(("v", "q"), v=TEXT, q=TEXT),
        args_into="in",
        bindings={"in.v": "$ctx.user.id"},
    )
    assert offered([tool])[0].input_schema == an_object(("q",), q=TEXT)
