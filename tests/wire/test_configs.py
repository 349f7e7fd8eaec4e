"""The config's first schema: what it takes, and where it says that something is wrong."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnkeeper.wire.configs import (
    Config,
    Effect,
    FailStep,
    GateStep,
    GrpcMethod,
    HttpRequest,
    Limits,
    ModelConfig,
    ReasoningStep,
    ScriptedCall,
    TextStep,
    ToolCallsStep,
    ToolConfig,
    UsageStep,
    WaitStep,
    parse_config,
)
from turnkeeper.wire.errors import Refused

HTTP = {"method": "POST", "url": "http://127.0.0.1:80/{id}"}


def _config(**keys: Any) -> str:
    return json.dumps({"schema_version": 1, "harness": "scripted", **keys})


def _tool(**keys: Any) -> dict[str, Any]:
    return {"name": "t", "http": HTTP, **keys}


def _grpc(**keys: Any) -> dict[str, Any]:
    return {"name": "t", "grpc": {"target": "[::1]:80", "method": "a.b.C/D", **keys}}


def wrong(text: str) -> list[str]:
    with pytest.raises(Refused, match="CONFIG_INVALID") as caught:
        parse_config(text)
    return [violation.field for violation in caught.value.fields]


def test_the_least_config_has_the_defaults() -> None:
    assert parse_config(_config()) == Config(harness="scripted")
    assert parse_config(_config(tools=[_tool()])).tools == (ToolConfig("t", HttpRequest("POST", HTTP["url"])),)
    assert (Limits().max_steps, Limits().turn_seconds, Limits().model_call_seconds, Limits().first_token_seconds) == (
        16,
        600,
        300,
        60,
    )


def test_a_whole_config() -> None:
    tool = _tool(
        description="d",
        input_schema={"type": "object"},
        effect="READ",
        scopes=["runs:read"],
        needs_approval=True,
        timeout_seconds=1.5,
        args_into="a.b",
        body={"x": 9007199254740993},
        bindings={"c.d": "$ctx.run.id"},
    )
    read = parse_config(
        _config(
            harness="openai",
            instructions="be kind",
            model={"name": "m", "temperature": 0.5, "max_output_tokens": 10.0},
            limits={"max_steps": 2.0, "turn_seconds": 3},
            tools=[tool],
            inputs={"any": ["thing"]},
            extensions={"x": None},
        )
    )
    assert read == Config(
        harness="openai",
        instructions="be kind",
        model=ModelConfig("m", 0.5, 10),
        limits=Limits(max_steps=2, turn_seconds=3),
        tools=(
            ToolConfig(
                name="t",
                http=HttpRequest("POST", HTTP["url"]),
                description="d",
                input_schema={"type": "object"},
                effect=Effect.READ,
                scopes=("runs:read",),
                needs_approval=True,
                timeout_seconds=1.5,
                args_into="a.b",
                body={"x": 9007199254740993},
                bindings={"c.d": "$ctx.run.id"},
            ),
        ),
        inputs={"any": ["thing"]},
        extensions={"x": None},
    )
    assert isinstance(read.limits.max_steps, int)


def test_a_grpc_tool() -> None:
    [tool] = parse_config(_config(tools=[_grpc() | {"identity": True}])).tools
    assert (tool.grpc, tool.http, tool.builtin, tool.identity) == (GrpcMethod("[::1]:80", "a.b.C/D"), None, False, True)


def test_a_built_in_tool_is_whole_by_its_name() -> None:
    built_in = {"name": "rename_session", "builtin": True, "scopes": ["x"], "description": "Only once."}
    [tool] = parse_config(_config(tools=[built_in])).tools
    assert tool.builtin
    assert (tool.effect, tool.scopes, tool.description) == (Effect.WRITE, ("x", "sessions:write"), "Only once.")
    assert tool.bindings == {"session_id": "$ctx.session.id"}
    assert tool.input_schema["required"] == ["name"]


def test_a_script() -> None:
    script = [
        {"text": "hi"},
        {"reasoning": "hm"},
        {"tool_calls": [{"name": "t", "arguments": {"n": 1}}]},
        {"wait_seconds": 0.5},
        {"wait_gate": "g"},
        {"usage": {"input_tokens": 1, "output_tokens": 2}},
        {"fail": "no"},
    ]
    assert parse_config(_config(script=script)).script == (
        TextStep("hi"),
        ReasoningStep("hm"),
        ToolCallsStep((ScriptedCall("t", {"n": 1}),)),
        WaitStep(0.5),
        GateStep("g"),
        UsageStep(1, 2),
        FailStep("no"),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["config_json"]),
        ("{", ["config_json"]),
        ("[]", ["config_json"]),
        ("null", ["config_json"]),
        ("{}", ["config_json"]),
        ('{"schema_version": 1, "harness": "a", "harness": "b"}', ["config_json"]),
        ('{"schema_version": 1, "harness": "a", "inputs": {"x": NaN}}', ["config_json"]),
        (_config(schema_version=2), ["config_json.schema_version"]),
        (_config(schema_version=True), ["config_json.schema_version"]),
        (_config(harness=""), ["config_json.harness"]),
        (_config(harness="scripted\n"), ["config_json.harness"]),
        (_config(unknown=1), ["config_json"]),
        (_config(instructions="a\x00"), ["config_json"]),
        (_config(model={}), ["config_json.model"]),
        (_config(model={"name": "m", "temperature": "hot"}), ["config_json.model.temperature"]),
        (_config(limits={"max_steps": 0}), ["config_json.limits.max_steps"]),
        (_config(limits={"max_steps": 101}), ["config_json.limits.max_steps"]),
        (_config(limits={"max_steps": 1.5}), ["config_json.limits.max_steps"]),
        (_config(limits={"turn_seconds": 0}), ["config_json.limits.turn_seconds"]),
        (_config(limits={"turn_seconds": 86401}), ["config_json.limits.turn_seconds"]),
        (_config(limits={"first_token_seconds": True}), ["config_json.limits.first_token_seconds"]),
        (_config(tools=[_tool(name="a b")]), ["config_json.tools[0].name"]),
        (_config(tools=[_tool(name="a\n")]), ["config_json.tools[0].name"]),
        (_config(tools=[_tool(), _tool(name="u"), _tool()]), ["config_json.tools[2].name"]),
        (_config(tools=[{"name": "t"}]), ["config_json.tools[0]"]),
        (_config(tools=[_tool(effect="MAYBE")]), ["config_json.tools[0].effect"]),
        (_config(tools=[_tool(http={**HTTP, "method": "TRACE"})]), ["config_json.tools[0].http.method"]),
        (_config(tools=[_tool(http={**HTTP, "url": "file:///etc/passwd"})]), ["config_json.tools[0].http.url"]),
        (_config(tools=[_tool(http={**HTTP, "url": "http://a b"})]), ["config_json.tools[0].http.url"]),
        *(
            (_config(tools=[_tool(http={**HTTP, "url": url})]), ["config_json.tools[0].http.url"])
            for url in (
                *("http://a:99999/", "http://a:0/", "http://a:x/", "http://:80/", "http://[::1/", "http://{host}/"),
                *("http://u:p@a/", "http://a/#part", "http://a/#", "http://a/?q={id}"),
            )
        ),
        (_config(harness="openai"), ["config_json.model"]),
        (_config(tools=[_tool(name="rename_agent", builtin=True)]), ["config_json.tools[0]", "config_json.tools[0]"]),
        (_config(tools=[_tool(http={**HTTP, "headers": {"authorization": "x"}})]), ["config_json.tools[0].http"]),
        (_config(tools=[_tool(identity="yes")]), ["config_json.tools[0].identity"]),
        (_config(tools=[{"name": "rename_all", "builtin": True}]), ["config_json.tools[0].name"]),
        (_config(tools=[{"name": "rename_agent", "builtin": True, "bindings": {}}]), ["config_json.tools[0]"]),
        (_config(tools=[_grpc(target="unix:/x")]), ["config_json.tools[0].grpc.target"]),
        (_config(tools=[_grpc(target="host")]), ["config_json.tools[0].grpc.target"]),
        (_config(tools=[_grpc(method="a.B.C")]), ["config_json.tools[0].grpc.method"]),
        (_config(tools=[_grpc(descriptor_set="no base64")]), ["config_json.tools[0].grpc.descriptor_set"]),
        (_config(tools=[_grpc(descriptor_set="AAAA")]), ["config_json.tools[0].grpc.descriptor_set"]),
        (_config(script=[{}]), ["config_json.script[0]"]),
        (_config(script=[{"text": "a", "fail": "b"}]), ["config_json.script[0]"]),
        (_config(script=[{"text": "ok"}, {"dance": 1}]), ["config_json.script[1]"]),
        (_config(script=[{"wait_seconds": -1}]), ["config_json.script[0].wait_seconds"]),
        (_config(script=[{"tool_calls": [{"name": "t"}]}]), ["config_json.script[0].tool_calls[0]"]),
    ],
)
def test_what_is_wrong_is_named_by_its_place(text: str, expected: list[str]) -> None:
    assert wrong(text) == expected


def test_violations_are_capped_and_quote_no_value() -> None:
    secret = "s3cret value"
    with pytest.raises(Refused) as caught:
        parse_config(_config(instructions=7, tools=[_tool(name=secret)] * 128))
    assert len(caught.value.fields) == 16
    assert secret not in repr(caught.value.fields)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_config(tools=[_tool(builtin=False)]), "must be true"),
        (_config(tools=[{"name": "x", "builtin": True}]), 'must be one of ["rename_session", "rename_agent"]'),
        (_config(**{"a\nb": 1}), 'has unknown keys: "a\\nb"'),
        (_config(**{"a\u202eb\x1b\u2028": 1}), 'has unknown keys: "a\\u202eb\\u001b\\u2028"'),
        (_config(**{"k" * 100: 1}), f'has unknown keys: "{"k" * 24}..."'),
        (_config(**{f"k{n}": 1 for n in range(9)}), 'has unknown keys: "k0", "k1", "k2", and 6 more'),
    ],
)
def test_what_is_said_is_json_and_one_line(text: str, said: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_config(text)
    assert said in [violation.description for violation in caught.value.fields]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
KEYS = ["harness", "instructions", "model", "limits", "tools", "script", "inputs", "extensions", "schema_version"]


@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_json_is_a_config_or_refused(keys: dict[str, Any]) -> None:
    try:
        parse_config(_config(**keys))
    except Refused as refused:
        named = bool(refused.fields)
    else:
        named = True
    assert named
