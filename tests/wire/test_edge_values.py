"""What the edge takes and refuses, value by value (SPEC 11.1, 11.2; CASES 15, 22)."""

import unicodedata
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st
from turnkeeper.v1 import (
    admin_service_pb2,
    agent_service_pb2,
    interaction_pb2,
    reference_pb2,
    run_pb2,
    run_service_pb2,
    runner_service_pb2,
    secret_service_pb2,
    session_pb2,
    session_service_pb2,
    turn_event_pb2,
    turn_service_pb2,
)
from turnkeeper.wire import edge
from turnkeeper.wire.errors import Refused

from tests.wire.requests import ID, REQUESTS, check_field, new, violations, wrong


def _any(**fields: Any) -> dict[str, Any]:
    """Values that the stubs' types do not allow, and a wire does."""
    return fields


def _start(**fields: Any) -> run_service_pb2.StartRunRequest:
    return run_service_pb2.StartRunRequest(**{"session_id": ID, "idempotency_key": "k", "input": "hi", **fields})


@pytest.mark.spec("11.1")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"idempotency_key": "k" * 9000}, "idempotency_key"),
        ({"idempotency_key": "k" * 256}, "idempotency_key"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "a\tb"}, "idempotency_key"),
        ({"idempotency_key": "a\n"}, "idempotency_key"),
        ({"idempotency_key": "é"}, "idempotency_key"),
        ({"input": ""}, "input"),
        ({"input": "é" * 524_289}, "input"),
        ({"session_id": ""}, "session_id"),
        ({"config_json": "x" * 1_048_577}, "config_json"),
        ({"references": [reference_pb2.Reference()] * 9}, "references"),
        ({"labels": {str(n): "" for n in range(33)}}, "labels"),
        ({"labels": {"": "x"}}, "labels"),
        ({"labels": {"k" * 64: "x"}}, "labels"),
        ({"labels": {"k": "v" * 256}}, "labels"),
        ({"labels": {"k": "\x00"}}, "labels"),
        ({"timeout": {"seconds": 0}}, "timeout"),
        ({"timeout": {"seconds": -1}}, "timeout"),
        ({"timeout": {"seconds": 86_400, "nanos": 1}}, "timeout"),
        ({"timeout": {"seconds": 1, "nanos": -1}}, "timeout"),
        ({"timeout": {"seconds": 1, "nanos": 1_000_000_000}}, "timeout"),
        ({"concurrency_policy": 77}, "concurrency_policy"),
    ],
)
def test_a_start_that_is_refused(fields: dict[str, Any], expected: str) -> None:
    assert wrong(_start(**fields)) == [expected]


@pytest.mark.spec("11.1")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"idempotency_key": "~" * 255},
        {"idempotency_key": " "},
        {"input": "é" * 524_288},
        {"input": " \n "},
        {"timeout": {"seconds": 86_400}},
        {"timeout": {"nanos": 1}},
        {"labels": {"k" * 63: "v" * 255, **{str(n): "" for n in range(31)}}},
        {"concurrency_policy": 3},
        {"config_json": "not even JSON: CONFIG_INVALID is for whoever reads it"},
    ],
)
def test_a_start_that_passes_unchanged(fields: dict[str, Any]) -> None:
    request = _start(**fields)
    edge.validate(request)
    assert request == _start(**fields)


@pytest.mark.spec("11.1")
def test_nested_paths_say_where() -> None:
    request = _start(
        references=[
            reference_pb2.Reference(**_any(family=1, level=1), slug="ok"),
            reference_pb2.Reference(**_any(family=0, level=9), slug="Not Ok"),
            reference_pb2.Reference(**_any(family=1, level=1)),
            reference_pb2.Reference(**_any(family=1, level=1), id=""),
            reference_pb2.Reference(**_any(family=1, level=3), id=ID, version="01"),
        ]
    )
    assert wrong(request) == [
        "references[1].family",
        "references[1].level",
        "references[1].slug",
        "references[2].name",
        "references[3].id",
        "references[4].version",
    ]


@pytest.mark.spec("11.1")
def test_nested_ids_are_made_canonical_too() -> None:
    request = _start(references=[reference_pb2.Reference(**_any(family=2, level=1), id="{" + ID.upper() + "}")])
    edge.validate(request)
    assert request.references[0].id == ID


@pytest.mark.spec("11.1")
@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("Blue", "Blue"),
        ("  Blue\t\n", "Blue"),
        (" \u2003\n", ""),
        ("", ""),
        ("x" * 200, "x" * 200),
        ("\U0001f600" * 200, "\U0001f600" * 200),
        (" " * 500 + "x" * 200 + " " * 500, "x" * 200),
        (unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFC", "é")),
        (unicodedata.normalize("NFD", "é"), unicodedata.normalize("NFD", "é")),
    ],
)
def test_a_name_is_trimmed_and_else_kept(name: str, stored: str) -> None:
    request = session_service_pb2.CreateSessionRequest(name=name)
    edge.validate(request)
    assert request.name == stored


@pytest.mark.spec("11.1")
@pytest.mark.parametrize("name", ["x" * 201, "\U0001f600" * 10_000, "a\x00"])
def test_a_name_that_is_refused(name: str) -> None:
    assert wrong(session_service_pb2.CreateSessionRequest(name=name)) == ["name"]


@pytest.mark.spec("11.1")
@pytest.mark.parametrize("name", ["", "  "])
def test_a_secret_needs_a_name_that_is_not_blank(name: str) -> None:
    assert wrong(secret_service_pb2.PutSecretRequest(name=name, value=b"x")) == ["name"]
    assert wrong(secret_service_pb2.PutSecretRequest(name="n", value=b"x" * 65_537)) == ["value"]


PAGED = [name for name, message in REQUESTS.items() if "page_size" in message.fields_by_name]


@pytest.mark.spec("11.1", "11.3")
@pytest.mark.parametrize("name", PAGED)
@pytest.mark.parametrize(("size", "passes"), [(-1, False), (-(2**31), False), (0, True), (200, True), (201, False)])
def test_page_sizes(name: str, size: int, passes: bool) -> None:
    message = new(REQUESTS[name])
    message.page_size = size
    assert check_field(message, REQUESTS[name].fields_by_name["page_size"]) == ([] if passes else ["page_size"])
    assert message.page_size == size


@pytest.mark.spec("11.1")
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (run_service_pb2.CancelRunRequest(), ["name"]),
        (run_service_pb2.CancelRunRequest(run_id=""), ["run_id"]),
        (run_service_pb2.CancelRunRequest(idempotency_key=""), ["idempotency_key"]),
        (run_service_pb2.CancelRunRequest(run_id=ID, reason="x" * 501), ["reason"]),
        (run_service_pb2.WatchRunRequest(run_id=ID, after_sequence=-1), ["after_sequence"]),
        (run_service_pb2.ListRunsRequest(**_any(states=[1, 0, 99])), ["states[1]", "states[2]"]),
        (run_service_pb2.ListRunsRequest(**_any(states=[1] * 9)), ["states"]),
        (run_service_pb2.ListRunsRequest(labels={str(n): "" for n in range(9)}), ["labels"]),
        (run_service_pb2.ListRunsRequest(**_any(created_from={"seconds": 253_402_300_800})), ["created_from"]),
        (run_service_pb2.ListRunsRequest(**_any(created_before={"nanos": -1})), ["created_before"]),
        (run_service_pb2.ListRunsRequest(page_token="é"), ["page_token"]),
        (
            run_service_pb2.ResumeRunRequest(run_id=ID, interaction_id=ID, decision=interaction_pb2.Decision()),
            ["decision.answer"],
        ),
        (run_service_pb2.ResumeRunRequest(run_id=ID, interaction_id=ID), ["decision"]),
        (session_service_pb2.UpdateSessionRequest(session_id=ID, name="x"), ["update_mask"]),
        (session_service_pb2.UpdateSessionRequest(session_id=ID, **_any(update_mask={})), ["update_mask"]),
        (
            session_service_pb2.UpdateSessionRequest(session_id=ID, **_any(update_mask={"paths": ["name", "busy"]})),
            ["update_mask"],
        ),
        (session_service_pb2.ShareSessionRequest(session_id=ID, **_any(permission=1)), ["grantee"]),
        (session_service_pb2.ShareSessionRequest(session_id=ID, user_id="bob"), ["permission"]),
        (session_service_pb2.AppendMessageRequest(session_id=ID, text="x"), ["role"]),
        (
            session_service_pb2.AppendMessageRequest(session_id=ID, text="x", role=session_pb2.MESSAGE_ROLE_TOOL),
            ["role"],
        ),
        (agent_service_pb2.CreateAgentRequest(slug="-a"), ["slug"]),
        (agent_service_pb2.CreateAgentRequest(slug="a" * 64), ["slug"]),
        (agent_service_pb2.CreateAgentRequest(slug="a\n"), ["slug"]),
        (agent_service_pb2.CommitRevisionRequest(variant_id=ID), ["config_json"]),
        (
            agent_service_pb2.PatchRevisionRequest(variant_id=ID, base_revision_id=ID, patch_json="[]"),
            ["patch_json"],
        ),
        (
            agent_service_pb2.PatchRevisionRequest(variant_id=ID, base_revision_id=ID, patch_json='{"a":NaN}'),
            ["patch_json"],
        ),
        (agent_service_pb2.PatchRevisionRequest(variant_id=ID, base_revision_id=ID, remove=["a", ""]), ["remove[1]"]),
        (turn_service_pb2.BeginToolCallRequest(call_id="1.1", tool_name="t"), ["call_id"]),
        (turn_service_pb2.FinishToolCallRequest(call_id="1.1.0"), ["state"]),
        (
            turn_service_pb2.FinishToolCallRequest(call_id="1.1.0", state=run_pb2.TOOL_CALL_STATE_STARTED),
            ["state"],
        ),
        (
            turn_service_pb2.ReportTurnStoppedRequest(
                events=[turn_event_pb2.TurnEvent(number=1, turn_ended=turn_event_pb2.TurnEnded())]
            ),
            ["events[0].turn_ended.outcome"],
        ),
        (runner_service_pb2.ExecuteTurnRequest(), ["body"]),
        (
            runner_service_pb2.ExecuteTurnRequest(
                start=runner_service_pb2.TurnStart(config_json="{}", lease=runner_service_pb2.Lease())
            ),
            ["start.lease.duration", "start.lease.probe_interval"],
        ),
        (admin_service_pb2.AdminServiceGetRunRequest(tenant_id="acme", run_id=ID), ["reason"]),
        (admin_service_pb2.AdminServiceSetRetentionRequest(tenant_id="a", reason="r", days=-1), ["kind", "days"]),
        (runner_service_pb2.BindToolBodyRequest(tool_json="{", arguments_json="1"), ["tool_json", "arguments_json"]),
    ],
)
def test_what_is_refused_elsewhere(message: Message, expected: list[str]) -> None:
    assert sorted(wrong(message)) == sorted(expected)


@pytest.mark.spec("11.1")
def test_a_call_may_begin_with_arguments_that_are_no_json() -> None:
    edge.validate(turn_service_pb2.BeginToolCallRequest(call_id="1.1.0", tool_name="what?", arguments_json="{oops"))


@pytest.mark.spec("11.2")
def test_no_violation_quotes_what_was_sent() -> None:
    secret = "s3cret-value"
    request = _start(session_id=secret, idempotency_key=secret + "é", labels={secret + "é": secret})
    assert len(violations(request)) == 3
    assert secret not in repr(violations(request))


@pytest.mark.spec("11.2")
def test_violations_are_collected_and_capped() -> None:
    request = runner_service_pb2.DescribeHarnessSessionsRequest(
        sessions=[runner_service_pb2.HarnessSessionKey(session_id="x")] * 200
    )
    assert len(violations(request)) == 16


@given(st.sampled_from(sorted(REQUESTS)), st.binary(max_size=200))
def test_any_bytes_that_parse_are_answered_by_refused_or_nothing(name: str, wire: bytes) -> None:
    message = new(REQUESTS[name])
    try:
        message.ParseFromString(wire)
    except DecodeError:
        return
    try:
        edge.validate(message)
    except Refused:
        return
    once = message.SerializeToString(deterministic=True)
    edge.validate(message)
    assert message.SerializeToString(deterministic=True) == once
