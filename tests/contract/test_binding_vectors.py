"""The vectors of `$ctx` binding, through the function itself and through BindToolBody (SPEC 7.1-7.9)."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from google.protobuf.json_format import ParseDict
from turnkeeper.v1 import facts_pb2
from turnkeeper.v1.runner_service_pb2 import BindToolBodyRequest
from turnkeeper.wire import json_text
from turnkeeper.wire.bindings import KEYS
from turnkeeper.wire.configs import HttpRequest, ToolConfig, parse_config
from turnkeeper.wire.errors import FieldViolation, Refused

from runner_service.app import runner_app
from runner_service.context.body import Unresolved, bind, to_json
from runner_service.context.values import context_values
from runner_service.settings import Settings
from tests.fixtures.client import Client
from tests.fixtures.issuer import Issuer
from tests.fixtures.journeys import refused

FILE = cast(dict[str, Any], json_text.parse(Path(__file__).with_name("binding_vectors.json").read_text("utf-8")))
VECTORS: list[dict[str, Any]] = FILE["vectors"]
FIELDS = {
    *("name", "rules", "tool", "arguments", "arguments_json", "run_context", "values"),
    *("body", "unresolved", "refused", "invalid"),
}
HTTP = {"method": "POST", "url": "http://127.0.0.1:1/t"}


def having(*fields: str, lacking: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Each vector that has one of these fields and none of the others."""
    chosen = [v for v in VECTORS if any(field in v for field in fields) and not any(field in v for field in lacking)]
    return pytest.mark.parametrize("vector", chosen, ids=lambda vector: vector["name"])


def exact(value: Any) -> str:
    """Compares as the vectors are compared: without the order of keys, numbers as they are written."""
    return json.dumps(value, sort_keys=True)


def arguments(vector: dict[str, Any]) -> str:
    """The arguments as text."""
    return str(vector["arguments_json"]) if "arguments_json" in vector else json.dumps(vector["arguments"])


def run_context(vector: dict[str, Any]) -> facts_pb2.RunContext:
    """The run context as the message that it is."""
    return ParseDict(vector["run_context"], facts_pb2.RunContext())


def outcome(vector: dict[str, Any]) -> Any:
    """What the function makes of a vector: a body, or the path that is unresolved."""
    tool = ToolConfig("t", HttpRequest(**HTTP), **vector["tool"])
    given = cast(dict[str, Any], json_text.parse(arguments(vector)))
    values = vector["values"] if "values" in vector else context_values(run_context(vector))
    before = exact([vector, given, values])
    try:
        return bind(tool, given, values)
    except Unresolved as error:
        return error.path
    finally:
        assert exact([vector, given, values]) == before


def test_the_file_keeps_its_own_format() -> None:
    assert len(VECTORS) >= 60
    assert len({vector["name"] for vector in VECTORS}) == len(VECTORS)
    for vector in VECTORS:
        assert set(vector) <= FIELDS, vector["name"]
        assert len({"arguments", "arguments_json"} & set(vector)) == 1, vector["name"]
        assert len({"run_context", "values"} & set(vector)) == 1, vector["name"]
        outcomes = {"body", "unresolved", "refused"} & set(vector)
        assert len(outcomes) == 1 or (not outcomes and vector["invalid"]), vector["name"]


@pytest.mark.spec("7.1", "7.2", "7.3", "7.4", "7.8", "7.9")
@having("body")
def test_the_function_binds_the_body(vector: dict[str, Any]) -> None:
    bound = outcome(vector)
    assert exact(bound) == exact(vector["body"])
    assert exact(json_text.parse(to_json(bound))) == exact(vector["body"])


@pytest.mark.spec("7.3", "7.5", "7.9")
@having("unresolved")
def test_the_function_makes_no_body_of_an_unresolved_binding(vector: dict[str, Any]) -> None:
    assert outcome(vector) == vector["unresolved"]


@pytest.mark.spec("7.8")
@having("refused")
def test_such_arguments_are_not_read(vector: dict[str, Any]) -> None:
    try:
        assert not isinstance(json_text.parse(arguments(vector)), dict)
    except json_text.JsonError:
        return


@pytest.mark.spec("7.7")
@having("invalid")
def test_no_config_has_such_a_tool(vector: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="CONFIG_INVALID") as caught:
        parse_config(json.dumps({"schema_version": 1, "harness": "scripted", "tools": [_whole(vector)]}))
    assert [each.field for each in caught.value.fields] == _places("config_json.tools[0]", vector)


@having("body", "unresolved", lacking=("invalid",))
def test_a_config_may_have_the_tool_of_any_other(vector: dict[str, Any]) -> None:
    config = parse_config(json.dumps({"schema_version": 1, "harness": "scripted", "tools": [_whole(vector)]}))
    assert config.tools[0].bindings == vector["tool"].get("bindings", {})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def people(issuer: Issuer) -> AsyncIterator[Client]:
    """Somebody who writes tools."""
    settings = Settings(
        listen="127.0.0.1:0",
        session_target="127.0.0.1:1",
        user_jwks=str(issuer.jwks_path),
        user_issuer=issuer.name,
        user_audience=issuer.audience,
    )
    token = issuer.token(scopes=("tools:bind",))
    async with runner_app(settings) as app, Client("127.0.0.1:1", app.address, token) as client:
        yield client


@pytest.mark.spec("7.1", "7.2", "7.3", "7.4", "7.8", "7.9")
@pytest.mark.asyncio(loop_scope="module")
@having("body", lacking=("values", "invalid"))
async def test_the_dry_run_binds_the_body(people: Client, vector: dict[str, Any]) -> None:
    response = await people.runner.BindToolBody(_request(vector))
    assert exact(json_text.parse(response.body_json)) == exact(vector["body"])


@pytest.mark.spec("7.3", "7.5", "7.9")
@pytest.mark.asyncio(loop_scope="module")
@having("unresolved", lacking=("values", "invalid"))
async def test_the_dry_run_names_an_unresolved_binding(people: Client, vector: dict[str, Any]) -> None:
    with refused("TOOL_BINDING_UNRESOLVED") as refusal:
        await people.runner.BindToolBody(_request(vector))
    assert refusal.code.name == "FAILED_PRECONDITION"
    assert refusal.detail.metadata == {"path": vector["unresolved"]}


@pytest.mark.spec("7.7")
@pytest.mark.asyncio(loop_scope="module")
@having("invalid", lacking=("values",))
async def test_the_dry_run_refuses_such_a_tool(people: Client, vector: dict[str, Any]) -> None:
    with refused("CONFIG_INVALID") as refusal:
        await people.runner.BindToolBody(_request(vector))
    assert refusal.code.name == "INVALID_ARGUMENT"
    assert _names(refusal.detail.fields, _places("tool_json", vector))


@pytest.mark.spec("7.8")
@pytest.mark.asyncio(loop_scope="module")
@having("refused")
async def test_the_dry_run_refuses_such_arguments(people: Client, vector: dict[str, Any]) -> None:
    with refused("INVALID_FIELD") as refusal:
        await people.runner.BindToolBody(_request(vector))
    assert refusal.code.name == "INVALID_ARGUMENT"
    assert [each.field for each in refusal.detail.fields] == ["arguments_json"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("tool", "place"),
    [
        ({"name": "t"}, "tool_json"),
        ({"name": "a b", "http": HTTP}, "tool_json.name"),
        ({"name": "t", "http": HTTP, "bindings": {"a.b": 7}}, 'tool_json.bindings["a.b"]'),
        ({"name": "t", "http": HTTP, "bindings": {"": "$ctx.user.id"}}, "tool_json.bindings"),
    ],
)
async def test_the_dry_run_takes_whole_tools_only(people: Client, tool: dict[str, Any], place: str) -> None:
    with refused("CONFIG_INVALID") as refusal:
        await people.runner.BindToolBody(BindToolBodyRequest(tool_json=json.dumps(tool), arguments_json="{}"))
    assert [each.field for each in refusal.detail.fields] == [place]


@pytest.mark.asyncio(loop_scope="module")
async def test_no_arguments_are_an_empty_object(people: Client) -> None:
    tool = {"name": "t", "http": HTTP, "body": {"a": 1}}
    assert (await people.runner.BindToolBody(BindToolBodyRequest(tool_json=json.dumps(tool)))).body_json == '{"a":1}'


@pytest.mark.spec("7.1")
def test_these_are_the_keys() -> None:
    assert sorted(KEYS) == sorted(
        [
            *("workflow.artifact.id", "workflow.artifact.slug", "workflow.variant.id", "workflow.variant.slug"),
            *("workflow.revision.id", "workflow.revision.slug", "workflow.revision.version", "workflow.is_draft"),
            *("trace.trace_id", "trace.span_id", "run.id", "run.kind", "session.id", "tenant.id", "user.id"),
        ]
    )


def _whole(vector: dict[str, Any]) -> dict[str, Any]:
    return {"name": "t", "http": HTTP, **vector["tool"]}


def _request(vector: dict[str, Any]) -> BindToolBodyRequest:
    return BindToolBodyRequest(
        tool_json=json.dumps(_whole(vector)), arguments_json=arguments(vector), run_context=run_context(vector)
    )


def _places(root: str, vector: dict[str, Any]) -> list[str]:
    return [f"{root}.args_into" if path == "args_into" else f'{root}.bindings["{path}"]' for path in vector["invalid"]]


def _names(fields: tuple[FieldViolation, ...], places: list[str]) -> bool:
    """Whether the violations name these places; long ones are cut."""
    return all(place.startswith(each.field.removesuffix("…")) for each, place in zip(fields, places, strict=True))
