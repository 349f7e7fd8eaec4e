"""An agent's config: JSON text in, frozen values out, or CONFIG_INVALID saying where (config_v1.schema.json)."""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError

from turnkeeper.v1 import error_reason_pb2
from turnkeeper.wire import bindings, json_text
from turnkeeper.wire.builtins import BUILTINS
from turnkeeper.wire.errors import MAX_VIOLATIONS, FieldViolation, Refused
from turnkeeper.wire.json_text import JsonValue

ROOT = "config_json"
_SHOWN_KEYS, _SHOWN_KEY_CHARS = 3, 24

JsonObject: TypeAlias = Mapping[str, JsonValue]


class Effect(Enum):
    """What a tool does to the world; WRITE unless the operator says READ."""

    READ = "READ"
    WRITE = "WRITE"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and how it is asked; None leaves a choice to the model's service."""

    name: str
    temperature: float | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a turn may take: model calls, and seconds for the turn, one model call, and its first token."""

    max_steps: int = 16
    turn_seconds: float = 600
    model_call_seconds: float = 300
    first_token_seconds: float = 60


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The request that a tool makes; `{name}` in the URL's path stands for an argument."""

    method: str
    url: str


@dataclass(frozen=True, slots=True)
class GrpcMethod:
    """The unary method that a tool calls: "host:port", "package.Service/Method", and how its messages are known.

    `descriptor_set` is a serialized FileDescriptorSet; None when the server is to be asked by reflection.
    """

    target: str
    method: str
    descriptor_set: bytes | None = None


@dataclass(frozen=True, slots=True)
class ToolConfig:
    """One tool: exactly one of `http`, `grpc` and `builtin` says what it calls.

    `args_into` and the keys of `bindings` are dotted paths in the body of the request.
    """

    name: str
    http: HttpRequest | None = None
    description: str = ""
    input_schema: JsonObject = field(default_factory=dict)
    effect: Effect = Effect.WRITE
    scopes: tuple[str, ...] = ()
    needs_approval: bool = False
    timeout_seconds: float = 60
    args_into: str | None = None
    body: JsonObject | None = None
    bindings: Mapping[str, str] = field(default_factory=dict)
    grpc: GrpcMethod | None = None
    builtin: bool = False
    identity: bool = False


@dataclass(frozen=True, slots=True)
class TextStep:
    """Says text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningStep:
    """Reasons aloud."""

    text: str


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call with its arguments."""

    name: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class ToolCallsStep:
    """Calls tools in parallel."""

    calls: tuple[ScriptedCall, ...]


@dataclass(frozen=True, slots=True)
class WaitStep:
    """Waits, in seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GateStep:
    """Waits until somebody opens the gate of that name."""

    name: str


@dataclass(frozen=True, slots=True)
class FailStep:
    """Fails the turn with this message."""

    message: str


@dataclass(frozen=True, slots=True)
class UsageStep:
    """Reports what a model call used."""

    input_tokens: int
    output_tokens: int


Step: TypeAlias = TextStep | ReasoningStep | ToolCallsStep | WaitStep | GateStep | FailStep | UsageStep

_PLAIN_STEPS: Mapping[str, Callable[[Any], Step]] = {
    "text": TextStep,
    "reasoning": ReasoningStep,
    "wait_seconds": WaitStep,
    "wait_gate": GateStep,
    "fail": FailStep,
}


@dataclass(frozen=True, slots=True)
class Config:
    """What a turn executes."""

    harness: str
    instructions: str = ""
    model: ModelConfig | None = None
    limits: Limits = field(default_factory=Limits)
    tools: tuple[ToolConfig, ...] = ()
    script: tuple[Step, ...] = ()
    inputs: JsonObject = field(default_factory=dict)
    extensions: JsonObject = field(default_factory=dict)


def parse_config(text: str) -> Config:
    """Reads a config; Refused CONFIG_INVALID names what is wrong by its place, as in `config_json.tools[0].name`."""
    return _config(_read(text, ROOT, "", _config_faults))


def parse_tool(text: str, root: str = "tool_json") -> ToolConfig:
    """Reads one tool as it stands in a config; Refused CONFIG_INVALID as for a config, with places under `root`."""
    return _tool(_read(text, root, "tool", _tool_faults))


def _read(
    text: str, root: str, definition: str, faults: Callable[[dict[str, Any], str], Iterator[FieldViolation]]
) -> dict[str, Any]:
    try:
        read = json_text.parse(text)
    except json_text.JsonError as error:
        raise _invalid([FieldViolation(root, str(error))]) from None
    violations = _first(MAX_VIOLATIONS, _violations(read, root, definition, faults))
    if violations or not isinstance(read, dict):
        raise _invalid(violations)
    return read


def _violations(
    read: JsonValue, root: str, definition: str, faults: Callable[[dict[str, Any], str], Iterator[FieldViolation]]
) -> Iterator[FieldViolation]:
    sound = True
    for error in _validator(definition).iter_errors(read):
        sound = False
        yield FieldViolation(root + _path(error), _description(error))
    if any("\x00" in string for string in json_text.strings(read)):
        yield FieldViolation(root, "must not contain NUL")
    if sound and isinstance(read, dict):
        yield from faults(read, root)


def _config_faults(read: dict[str, Any], root: str) -> Iterator[FieldViolation]:
    """What no schema can say: of tools among each other, and of each."""
    names: set[str] = set()
    for index, tool in enumerate(read.get("tools", [])):
        place = f"{root}.tools[{index}]"
        if tool["name"] in names:
            yield FieldViolation(f"{place}.name", "is the name of another tool too")
        names.add(tool["name"])
        yield from _tool_faults(tool, place)
    if read["harness"] == "openai" and "model" not in read:
        yield FieldViolation(f"{root}.model", "is needed by the harness openai")


def _tool_faults(tool: dict[str, Any], place: str) -> Iterator[FieldViolation]:
    if "args_into" in tool and (fault := bindings.path_fault(tool["args_into"])) is not None:
        yield FieldViolation(f"{place}.args_into", fault)
    for path, fault in bindings.faults(tool.get("bindings", {})):
        yield FieldViolation(f"{place}.bindings{_part(path, quoted=True)}", fault)
    if "http" in tool and (fault := _url_fault(tool["http"]["url"])) is not None:
        yield FieldViolation(f"{place}.http.url", fault)
    if "descriptor_set" in tool.get("grpc", {}):
        try:
            FileDescriptorSet.FromString(_grpc(tool["grpc"]).descriptor_set or b"")
        except (ValueError, DecodeError):
            yield FieldViolation(f"{place}.grpc.descriptor_set", "must be a FileDescriptorSet in base64")


def _url_fault(url: str) -> str | None:
    """What is wrong with a tool's URL whatever a runner's settings allow; None when nothing is."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "must be a URL with a valid host and port"
    if not parts.hostname or "{" in parts.netloc or port == 0:
        return "must be a URL with a valid host and port"
    if "@" in parts.netloc:
        return "must not hold credentials"
    if "#" in url:
        return "must not have a fragment"
    return "must have its parameters in the path" if "{" in parts.query else None


def _first(count: int, violations: Iterator[FieldViolation]) -> list[FieldViolation]:
    # jsonschema says it once for each key that lacks.
    distinct: dict[FieldViolation, None] = {}
    for violation in violations:
        distinct[violation] = None
        if len(distinct) == count:
            break
    return list(distinct)


@cache
def _validator(definition: str) -> Any:
    """Of a whole config, or of one of the schema's definitions."""
    schema = json.loads(resources.files(__package__).joinpath("config_v1.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    schema = _inlined(schema["$defs"][definition] if definition else schema, schema["$defs"])
    return validators.extend(Draft202012Validator, {"pattern": _pattern})(schema)  # type: ignore[no-untyped-call]


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """The schema without references: to resolve one at each of thousands of steps takes longer than to judge them."""
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {key: _inlined(each, definitions) for key, each in schema.items() if key not in {"$ref", "$defs"}}
    if "$ref" in schema:
        whole |= _inlined(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    return whole


def _pattern(_validator: Any, pattern: str, instance: object, _schema: object) -> Iterator[ValidationError]:
    # Python's $ also matches before a final new line, which JSON Schema's does not.
    if isinstance(instance, str) and (instance.endswith("\n") or not re.search(pattern, instance)):
        yield ValidationError("does not match")


def _path(error: ValidationError) -> str:
    parts = list(error.absolute_path)
    # The keys of bindings are dotted paths themselves.
    return "".join(_part(part, quoted="bindings" in parts[:index]) for index, part in enumerate(parts))


def _part(part: str | int, *, quoted: bool) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f"[{json.dumps(part, ensure_ascii=False)}]" if quoted else f".{part}"


def _description(error: ValidationError) -> str:
    # jsonschema's own messages quote the value; these quote the schema, and at most the names of unknown keys.
    limit = error.validator_value
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
        return f"has unknown keys: {', '.join(_shown(sorted(set(error.instance) - set(known))))}"
    if error.validator == "required" and isinstance(error.instance, dict) and isinstance(limit, list):
        return f"lacks {', '.join(key for key in limit if key not in error.instance)}"
    texts = {
        "type": f"must be of type {limit}",
        "const": f"must be {json.dumps(limit)}",
        "enum": f"must be one of {json.dumps(limit)}",
        "pattern": f"must match {limit}",
        "minimum": f"must be at least {limit}",
        "exclusiveMinimum": f"must be more than {limit}",
        "maximum": f"must be at most {limit}",
        "minLength": "must not be empty",
        "maxLength": f"must be at most {limit} code points",
        "minItems": "must not be empty",
        "maxItems": f"must have at most {limit} items",
        "minProperties": "must have exactly one key",
        "oneOf": "must have exactly one of http, grpc, builtin",
        "maxProperties": f"must have at most {limit} keys",
    }
    return texts.get(str(error.validator), "breaks the config schema")


def _shown(keys: list[str]) -> Iterator[str]:
    """The first keys, as JSON without anything that turns or breaks a line where it is shown, each one cut."""
    for key in keys[:_SHOWN_KEYS]:
        yield json.dumps(key if len(key) <= _SHOWN_KEY_CHARS else key[:_SHOWN_KEY_CHARS] + "...")
    if len(keys) > _SHOWN_KEYS:
        yield f"and {len(keys) - _SHOWN_KEYS} more"


def _invalid(violations: list[FieldViolation]) -> Refused:
    return Refused(error_reason_pb2.ERROR_REASON_CONFIG_INVALID, fields=violations)


def _config(read: dict[str, Any]) -> Config:
    given: dict[str, Any] = {
        key: read[key] for key in ("harness", "instructions", "inputs", "extensions") if key in read
    }
    if "model" in read:
        given["model"] = ModelConfig(**_whole(read["model"], "max_output_tokens"))
    if "limits" in read:
        given["limits"] = Limits(**_whole(read["limits"], "max_steps"))
    given["tools"] = tuple(_tool(tool) for tool in read.get("tools", []))
    given["script"] = tuple(_step(step) for step in read.get("script", []))
    return Config(**given)


def _tool(read: dict[str, Any]) -> ToolConfig:
    given = dict(read)
    if "http" in read:
        given["http"] = HttpRequest(**read["http"])
    if "grpc" in read:
        given["grpc"] = _grpc(read["grpc"])
    given["effect"] = Effect(read.get("effect", Effect.WRITE.value))
    given["scopes"] = tuple(read.get("scopes", ()))
    if "builtin" in read:
        builtin = BUILTINS[read["name"]]
        given["description"] = read.get("description", builtin.description)
        given["scopes"] = tuple(dict.fromkeys((*given["scopes"], builtin.scope)))
        given |= {"input_schema": builtin.input_schema, "bindings": builtin.bindings}
    return ToolConfig(**given)


def _grpc(read: dict[str, Any]) -> GrpcMethod:
    given = base64.b64decode(read["descriptor_set"], validate=True) if "descriptor_set" in read else None
    return GrpcMethod(read["target"], read["method"], given)


def _step(read: dict[str, Any]) -> Step:
    [(kind, value)] = read.items()
    if kind == "tool_calls":
        return ToolCallsStep(tuple(ScriptedCall(**call) for call in value))
    if kind == "usage":
        return UsageStep(**_whole(value, "input_tokens", "output_tokens"))
    return _PLAIN_STEPS[kind](value)


def _whole(read: dict[str, Any], *keys: str) -> dict[str, Any]:
    # JSON Schema takes 1.0 for an integer.
    return {key: int(value) if key in keys else value for key, value in read.items()}
