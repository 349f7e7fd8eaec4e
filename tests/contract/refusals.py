"""Requests that only the service itself can see to be wrong, each with its documented answer."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from turnkeeper.v1 import agent_service_pb2 as agents
from turnkeeper.v1 import run_pb2
from turnkeeper.v1 import run_service_pb2 as runs
from turnkeeper.v1 import runner_service_pb2 as runner
from turnkeeper.v1 import session_service_pb2 as sessions
from turnkeeper.v1 import turn_service_pb2 as turns
from turnkeeper.v1.run_event_pb2 import TextDelta
from turnkeeper.v1.turn_event_pb2 import TurnEvent
from turnkeeper.wire.context import TokenKind

from tests.contract.cases.case import named
from tests.contract.worlds import World
from tests.fixtures.journeys import reference, scripted

_SECOND = Duration(seconds=1)


@dataclass(frozen=True)
class Refusal:
    """A request that only the service can see to be wrong."""

    name: str
    rpc: str
    make: Callable[[World], Message]
    code: str
    reason: str
    paths: tuple[str, ...] = ()
    """The fields that are named."""
    metadata: Callable[[World], Mapping[str, str]] = lambda _: {}
    kind: TokenKind = TokenKind.USER

    def __str__(self) -> str:
        return self.name


def _start(name: str, reason: str, *paths: str, code: str = "INVALID_ARGUMENT", **fields: Any) -> Refusal:
    def make(world: World) -> Message:
        given = {key: value(world) if callable(value) else value for key, value in fields.items()}
        return runs.StartRunRequest(**{"session_id": world.session_id, "idempotency_key": "k", "input": "x", **given})

    return Refusal(f"start: {name}", "RunService/StartRun", make, code, reason, paths)


def _config(name: str, config_json: str, *paths: str) -> Refusal:
    return _start(f"config: {name}", "CONFIG_INVALID", *(paths or ("config_json",)), config_json=config_json)


def _scripted(**more: Any) -> str:
    return scripted({"text": "x"}, **more)


_NOTHING = str(uuid.uuid4())
_CONFIGS = (
    _config("no JSON", "{"),
    _config("no object", "[]"),
    _config("twice the same key", '{"schema_version": 1, "schema_version": 1, "harness": "scripted"}'),
    _config("NaN", '{"schema_version": NaN, "harness": "scripted"}'),
    _config("too deep", '{"extensions": ' + '{"a":' * 70 + "1" + "}" * 71),
    _config("half an emoji", _scripted(instructions="\ud83d")),
    _config("NUL", _scripted(instructions="a\x00b")),
    _config("an unknown key", _scripted(color="blue")),
    _config(
        "another version",
        _scripted().replace('"schema_version": 1', '"schema_version": 2'),
        "config_json.schema_version",
    ),
    _config("a wrong type", _scripted(limits={"max_steps": "3"}), "config_json.limits.max_steps"),
    _config("out of range", _scripted(limits={"max_steps": 101}), "config_json.limits.max_steps"),
)
_STARTS = (
    _start("nothing to run", "AGENT_REQUIRED"),
    _start("no such slug", "RESOURCE_NOT_FOUND", code="NOT_FOUND", references=[named("ARTIFACT", slug="nobody")]),
    _start(
        "a version of an agent",
        "INVALID_FIELD",
        "references[0].version",
        references=lambda world: [named("ARTIFACT", id=world.agent_id, version="0")],
    ),
    _start(
        "no such version",
        "RESOURCE_NOT_FOUND",
        code="NOT_FOUND",
        references=lambda world: [named("REVISION", id=world.variant_id, version="7")],
    ),
    _start("a revision's slug", "INVALID_FIELD", "references[0].slug", references=[named("REVISION", slug="default")]),
    _start(
        "a variant's slug alone", "INVALID_FIELD", "references[0].slug", references=[named("VARIANT", slug="default")]
    ),
    _start(
        "a variant as an agent",
        "RESOURCE_NOT_FOUND",
        code="NOT_FOUND",
        references=lambda world: [named("ARTIFACT", id=world.variant_id)],
    ),
    _start(
        "a used key",
        "IDEMPOTENCY_KEY_REUSED",
        code="ALREADY_EXISTS",
        idempotency_key="made-any",
        config_json=_scripted(),
    ),
)


def _user(
    name: str, rpc: str, make: Callable[[World], Message], code: str, reason: str, *paths: str, **more: Any
) -> Refusal:
    return Refusal(name, rpc, make, code, reason, paths, **more)


def _of_run(
    name: str, method: str, request: Message, reason: str, *paths: str, code: str = "INVALID_ARGUMENT"
) -> Refusal:
    return Refusal(name, f"TurnService/{method}", lambda _: request, code, reason, paths, kind=TokenKind.RUN)


_USERS = (
    _user(
        "a cursor ahead of the log",
        "RunService/WatchRun",
        lambda world: runs.WatchRunRequest(run_id=world.run_id, after_sequence=2**62),
        "OUT_OF_RANGE",
        "CURSOR_AHEAD",
    ),
    _user(
        "a used request id",
        "SessionService/CreateSession",
        lambda _: sessions.CreateSessionRequest(name="x", request_id="made-any"),
        "ALREADY_EXISTS",
        "REQUEST_ID_REUSED",
    ),
    _user(
        "an agent's slug that is taken",
        "AgentService/CreateAgent",
        lambda world: agents.CreateAgentRequest(slug=world.slug),
        "ALREADY_EXISTS",
        "SLUG_TAKEN",
        metadata=lambda _: {"resource": "agent"},
    ),
    _user(
        "a variant's slug that is taken",
        "AgentService/CreateVariant",
        lambda world: agents.CreateVariantRequest(agent_id=world.agent_id, slug="default"),
        "ALREADY_EXISTS",
        "SLUG_TAKEN",
        metadata=lambda _: {"resource": "variant"},
    ),
    _user(
        "a base that is not the head",
        "AgentService/CommitRevision",
        lambda world: agents.CommitRevisionRequest(variant_id=world.variant_id, config_json=_scripted()),
        "ABORTED",
        "REVISION_CONFLICT",
        metadata=lambda world: {"head_revision_id": world.revision_id},
    ),
    _user(
        "a revision's config",
        "AgentService/CommitRevision",
        lambda world: agents.CommitRevisionRequest(variant_id=world.variant_id, config_json="{}"),
        "INVALID_ARGUMENT",
        "CONFIG_INVALID",
        "config_json",
    ),
    _user(
        "a direct turn with a lease",
        "RunnerService/ExecuteTurn",
        lambda _: runner.ExecuteTurnRequest(
            start=runner.TurnStart(
                input="x", config_json=_scripted(), lease=runner.Lease(duration=_SECOND, probe_interval=_SECOND)
            )
        ),
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "start.lease",
    ),
    _user(
        "a turn that does not start",
        "RunnerService/ExecuteTurn",
        lambda _: runner.ExecuteTurnRequest(stored=runner.EventsStored(number=1)),
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "start",
    ),
    _user(
        "a direct turn's config",
        "RunnerService/ExecuteTurn",
        lambda _: runner.ExecuteTurnRequest(start=runner.TurnStart(input="x", config_json="{}")),
        "INVALID_ARGUMENT",
        "CONFIG_INVALID",
        "config_json",
    ),
    *(
        _user(
            f"a page token that is none, {rpc}",
            rpc,
            lambda _, kind=kind: kind(page_token=str(uuid.uuid4())),  # type: ignore[misc]
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "page_token",
        )
        for rpc, kind in (
            ("SessionService/ListSessions", sessions.ListSessionsRequest),
            ("RunService/ListRuns", runs.ListRunsRequest),
            ("AgentService/ListAgents", agents.ListAgentsRequest),
        )
    ),
)
_LATE = TurnEvent(number=2, text_delta=TextDelta(text="b", step=1))
_EARLY = TurnEvent(number=1, text_delta=TextDelta(text="a", step=1))
_RUNS = (
    _of_run(
        "a run's turn in a session",
        "BeginTurn",
        turns.BeginTurnRequest(harness="scripted", session_id=_NOTHING),
        "INVALID_FIELD",
        "session_id",
    ),
    _of_run(
        "a run's context of a session",
        "ResolveTurnContext",
        turns.ResolveTurnContextRequest(session_id=_NOTHING),
        "INVALID_FIELD",
        "session_id",
    ),
    _of_run(
        "a run's context of references",
        "ResolveTurnContext",
        turns.ResolveTurnContextRequest(references=[reference(_NOTHING)]),
        "INVALID_FIELD",
        "references",
    ),
    _of_run(
        "a call of another attempt",
        "BeginToolCall",
        turns.BeginToolCallRequest(call_id="2.1.0", tool_name="lookup", arguments_json="{}"),
        "INVALID_FIELD",
        "call_id",
    ),
    _of_run(
        "a call of no step",
        "BeginToolCall",
        turns.BeginToolCallRequest(call_id="1.0.0", tool_name="lookup", arguments_json="{}"),
        "INVALID_FIELD",
        "call_id",
    ),
    _of_run(
        "a call before its text",
        "BeginToolCall",
        turns.BeginToolCallRequest(call_id="1.2.0", tool_name="lookup", arguments_json="{}", after_event=2**40),
        "INVALID_FIELD",
        "after_event",
    ),
    _of_run(
        "a call that is another",
        "BeginToolCall",
        turns.BeginToolCallRequest(call_id="1.7.0", tool_name="other", arguments_json="{}", side_effect=True),
        "TOOL_CALL_CONFLICT",
        code="FAILED_PRECONDITION",
    ),
    _of_run(
        "a call that nobody began",
        "FinishToolCall",
        turns.FinishToolCallRequest(call_id="1.9.9", state=run_pb2.TOOL_CALL_STATE_SUCCEEDED),
        "RESOURCE_NOT_FOUND",
        code="NOT_FOUND",
    ),
    _of_run(
        "events out of order",
        "ReportTurnStopped",
        turns.ReportTurnStoppedRequest(events=[_LATE, _EARLY]),
        "INVALID_FIELD",
        "events",
    ),
    _of_run(
        "an event twice",
        "ReportTurnStopped",
        turns.ReportTurnStoppedRequest(events=[_EARLY, _EARLY]),
        "INVALID_FIELD",
        "events",
    ),
    _of_run(
        "an event without a number",
        "ReportTurnStopped",
        turns.ReportTurnStoppedRequest(events=[TurnEvent(text_delta=TextDelta(text="a", step=1))]),
        "INVALID_FIELD",
        "events",
    ),
)

REFUSALS: tuple[Refusal, ...] = (*_CONFIGS, *_STARTS, *_USERS, *_RUNS)
