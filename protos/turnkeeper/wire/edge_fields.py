"""Which rule holds for which field of a request: the numbers of the contract's comments, in one table (SPEC 11.1).

A rule is looked up by "Message.field" first, then by the field's name alone (an enum's only by "Message.field": without
one it takes every known value but zero). For a repeated field it holds for each item; a map has one for its keys and
one for its values.
"""

from collections.abc import Mapping
from datetime import timedelta

from turnkeeper.v1 import run_pb2, run_service_pb2, session_pb2
from turnkeeper.wire.edge_rules import (
    KIB,
    MIB,
    Rule,
    ascii_text,
    duration,
    integer,
    json_object,
    mask,
    name,
    octets,
    one_of,
    pattern,
    points,
    text,
    timestamp,
    uuid_id,
)

MAX_PAGE_SIZE = 200
_DAY = timedelta(hours=24)

_KEY = ascii_text(1, 255)
_PRINCIPAL = pattern("[^\x00-\x1f\x7f]{1,255}", "1-255 printable characters")
_SLUG = pattern("[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", "1-63 of a-z, 0-9 and dashes, not at either end")
_CALL_ID = pattern(r"[0-9]{1,10}\.[0-9]{1,10}\.[0-9]{1,10}", "attempt.step.index")
_VERSION = pattern("0|[1-9][0-9]{0,17}", 'a version, for example "0"')
_COUNT = integer(0)

FIELDS: Mapping[str, Rule] = {
    # ids of ours
    "session_id": uuid_id,
    "run_id": uuid_id,
    "prompt_of_run_id": uuid_id,
    "interaction_id": uuid_id,
    "agent_id": uuid_id,
    "variant_id": uuid_id,
    "revision_id": uuid_id,
    "base_revision_id": uuid_id,
    "share_id": uuid_id,
    "Reference.id": uuid_id,
    "ArtifactIdentity.id": uuid_id,
    "VariantIdentity.id": uuid_id,
    "RevisionIdentity.id": uuid_id,
    "RunIdentity.id": uuid_id,
    "SessionIdentity.id": uuid_id,
    # ids of the organisation's, which only tokens vouch for
    "tenant_id": _PRINCIPAL,
    "user_id": _PRINCIPAL,
    "owner_user_id": _PRINCIPAL,
    "ShareSessionRequest.role": _PRINCIPAL,
    "TenantIdentity.id": _PRINCIPAL,
    "UserIdentity.id": _PRINCIPAL,
    # the caller's keys, names and texts
    "idempotency_key": _KEY,
    "request_id": _KEY,
    "slug": _SLUG,
    "RevisionIdentity.slug": points(100),
    "name": name,
    "input": text(MIB),
    "AppendMessageRequest.text": text(MIB),
    "Decision.text": points(10_000),
    "message": points(1000),
    "reason": points(500),
    "Deny.reason": points(2000),
    "labels.key": ascii_text(1, 63),
    "labels.value": ascii_text(0, 255),
    "value": octets(64 * KIB),
    # JSON: a config is read where it is needed, which answers CONFIG_INVALID with its own paths; the arguments of a
    # model's call are kept as the model wrote them
    "config_json": text(MIB),
    "patch_json": json_object(MIB),
    "tool_json": json_object(MIB),
    "arguments_json": text(MIB),
    "BindToolBodyRequest.arguments_json": json_object(MIB),
    "remove": pattern("[^\x00]{1,1000}", "a dotted path of 1-1000 code points without NUL"),
    "version": _VERSION,
    # pages and cursors
    "page_size": integer(0, MAX_PAGE_SIZE),
    "page_token": ascii_text(1, 2048),
    "after_sequence": _COUNT,
    # times
    "timeout": duration(_DAY),
    "duration": duration(_DAY),
    "probe_interval": duration(_DAY),
    "remaining": duration(_DAY, zero=True),
    "created_from": timestamp,
    "created_before": timestamp,
    "days": integer(0, 36_500),
    "update_mask": mask("name"),
    # enums that take less than every known value, or their zero too
    "AppendMessageRequest.role": one_of(
        session_pb2.MESSAGE_ROLE_USER, session_pb2.MESSAGE_ROLE_ASSISTANT, session_pb2.MESSAGE_ROLE_SYSTEM
    ),
    "StartRunRequest.concurrency_policy": one_of(*run_service_pb2.ConcurrencyPolicy.values()),
    "FinishToolCallRequest.state": one_of(
        run_pb2.TOOL_CALL_STATE_SUCCEEDED,
        run_pb2.TOOL_CALL_STATE_FAILED,
        run_pb2.TOOL_CALL_STATE_UNKNOWN,
        run_pb2.TOOL_CALL_STATE_NOT_MADE,
    ),
    "StoppedToolCall.state": one_of(run_pb2.TOOL_CALL_STATE_UNKNOWN, run_pb2.TOOL_CALL_STATE_NOT_MADE),
    # what a runner says of a turn
    "harness": points(64),
    "runner_store": _KEY,
    "call_id": _CALL_ID,
    "tool_call_id": _CALL_ID,
    "tool_name": points(255),
    "model_call_id": points(1000),
    "after_event": _COUNT,
    "result": text(MIB),
    "number": _COUNT,
    "turn": _COUNT,
    "turn_number": _COUNT,
    "step": _COUNT,
    "probe": integer(1),
    "original_bytes": _COUNT,
    "input_tokens": _COUNT,
    "output_tokens": _COUNT,
    "TextDelta.text": text(MIB),
    "ReasoningDelta.text": text(MIB),
    "finish_reason": points(255),
    "model": points(255),
    "prompt": text(64 * KIB),
    "RunFailure.message": text(64 * KIB),
    # a run context to try a binding with
    "trace_id": pattern("[0-9a-f]{32}", "32 hexadecimal digits"),
    "span_id": pattern("[0-9a-f]{16}", "16 hexadecimal digits"),
    "RunIdentity.kind": pattern("run|direct", '"run" or "direct"'),
}

# What must be there, per message: fields, or oneofs of which one must be set. Enums need no mention.
REQUIRED: Mapping[str, frozenset[str]] = {
    message: frozenset(fields.split())
    for message, fields in {
        "Reference": "name",
        "Decision": "answer",
        # SessionService
        "GetSessionRequest": "session_id",
        "RestoreSessionRequest": "session_id",
        "UpdateSessionRequest": "session_id update_mask",
        "DeleteSessionRequest": "session_id",
        "ShareSessionRequest": "session_id grantee",
        "UnshareSessionRequest": "session_id share_id",
        "ListSessionSharesRequest": "session_id",
        "AppendMessageRequest": "session_id text",
        "ListMessagesRequest": "session_id",
        # RunService
        "StartRunRequest": "session_id idempotency_key input",
        "GetRunRequest": "run_id",
        "WatchRunRequest": "run_id",
        "WatchSessionRequest": "session_id",
        "CancelRunRequest": "name",
        "ResumeRunRequest": "run_id interaction_id decision",
        # AgentService
        "GetAgentRequest": "agent_id",
        "UpdateAgentRequest": "agent_id update_mask",
        "DeleteAgentRequest": "agent_id",
        "CreateVariantRequest": "agent_id slug",
        "ListVariantsRequest": "agent_id",
        "CommitRevisionRequest": "variant_id config_json",
        "PatchRevisionRequest": "variant_id base_revision_id",
        "GetRevisionRequest": "revision_id",
        "ListRevisionsRequest": "variant_id",
        "CompareConfigRequest": "base config_json",
        # TurnService
        "BeginTurnRequest": "harness",
        "BeginToolCallRequest": "call_id tool_name",
        "FinishToolCallRequest": "call_id",
        "StoppedToolCall": "call_id",
        "ApprovalRequested": "call_id tool_name",
        "TurnEnded": "outcome",
        "ResolveSecretRequest": "name tool_name",
        # SecretService
        "PutSecretRequest": "name value",
        "DeleteSecretRequest": "name",
        # AdminService
        "AdminServiceListSessionsRequest": "tenant_id reason",
        "AdminServiceGetRunRequest": "tenant_id reason run_id",
        "AdminServiceListRunsRequest": "tenant_id reason",
        "AdminServiceCancelRunRequest": "tenant_id reason run_id",
        "AdminServiceDeactivateTenantRequest": "tenant_id reason",
        "AdminServiceDeleteUserDataRequest": "tenant_id reason user_id",
        "AdminServiceSetRetentionRequest": "tenant_id reason",
        "AdminServiceListAuditEntriesRequest": "tenant_id reason",
        # RunnerService
        "ExecuteTurnRequest": "body",
        "TurnStart": "config_json",
        "Lease": "duration probe_interval",
        "InteractionReply": "call_id decision",
        "LeaseRenewed": "remaining",
        "HarnessSessionKey": "session_id",
        "DeleteHarnessSessionRequest": "session",
        "BindToolBodyRequest": "tool_json",
    }.items()
}

# How many items a repeated field or a map may have, by the same names as the rules.
MAX_ITEMS: Mapping[str, int] = {
    "references": 8,
    "states": 8,
    "remove": 256,
    "StartRunRequest.labels": 32,
    "ListRunsRequest.labels": 8,
    "DescribeHarnessSessionsRequest.sessions": 200,
    # bounded by the message size already; a report must not be refused for being long
    "ReportTurnStoppedRequest.events": 1_000_000,
    "ReportTurnStoppedRequest.stopped_tool_calls": 1_000_000,
}
