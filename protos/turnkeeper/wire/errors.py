"""The one error mapper: reason → gRPC code, fixed text and google.rpc details (SPEC 11.2).

The text is for people and never depends on the request; what varies is in the details, which are for programs.
"""

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import grpc
import structlog
from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from turnkeeper.v1 import error_reason_pb2 as reasons

DOMAIN = "turnkeeper"
PREFIX = "ERROR_REASON_"

# gRPC carries the details base64 in one trailer, and peers refuse more than 8 KiB of metadata (grpc#29518).
MAX_VIOLATIONS = 16
MAX_PART = 128
MAX_DETAIL_BYTES = 4096

Reason: TypeAlias = reasons.ErrorReason.ValueType

_log = structlog.get_logger("turnkeeper.errors")
_Code = grpc.StatusCode

CATALOG: Mapping[Reason, tuple[grpc.StatusCode, str]] = {
    reasons.ERROR_REASON_UNAUTHENTICATED: (_Code.UNAUTHENTICATED, "A valid bearer token is required."),
    reasons.ERROR_REASON_SCOPE_MISSING: (_Code.PERMISSION_DENIED, "The token lacks the scope that the method needs."),
    reasons.ERROR_REASON_TOKEN_KIND_REFUSED: (_Code.PERMISSION_DENIED, "This kind of token is not accepted here."),
    reasons.ERROR_REASON_PERMISSION_MISSING: (_Code.PERMISSION_DENIED, "The caller may not do this to the resource."),
    reasons.ERROR_REASON_RESOURCE_NOT_FOUND: (_Code.NOT_FOUND, "There is no such resource."),
    reasons.ERROR_REASON_INVALID_FIELD: (_Code.INVALID_ARGUMENT, "The request has invalid fields."),
    reasons.ERROR_REASON_IDEMPOTENCY_KEY_REUSED: (
        _Code.ALREADY_EXISTS,
        "The idempotency key was used for another start.",
    ),
    reasons.ERROR_REASON_REQUEST_ID_REUSED: (_Code.ALREADY_EXISTS, "The request id was used for another request."),
    reasons.ERROR_REASON_SLUG_TAKEN: (_Code.ALREADY_EXISTS, "The slug is taken."),
    reasons.ERROR_REASON_SESSION_BUSY: (_Code.FAILED_PRECONDITION, "The session has a run that has not ended."),
    reasons.ERROR_REASON_AGENT_AMBIGUOUS: (_Code.INVALID_ARGUMENT, "The references name more than one agent."),
    reasons.ERROR_REASON_AGENT_REQUIRED: (_Code.INVALID_ARGUMENT, "Neither a reference nor a config was given."),
    reasons.ERROR_REASON_REFERENCE_INCOHERENT: (_Code.INVALID_ARGUMENT, "The references contradict each other."),
    reasons.ERROR_REASON_CONFIG_INVALID: (_Code.INVALID_ARGUMENT, "The config is not valid."),
    reasons.ERROR_REASON_QUEUE_FULL: (_Code.RESOURCE_EXHAUSTED, "Too many runs are queued."),
    reasons.ERROR_REASON_CURSOR_AHEAD: (_Code.OUT_OF_RANGE, "The cursor is ahead of the log."),
    reasons.ERROR_REASON_CURSOR_EXPIRED: (_Code.OUT_OF_RANGE, "Events after the cursor are no longer kept."),
    reasons.ERROR_REASON_ATTEMPT_FENCED: (_Code.ABORTED, "The attempt is no longer current; stop."),
    reasons.ERROR_REASON_REVISION_CONFLICT: (_Code.ABORTED, "The base revision is not the head."),
    reasons.ERROR_REASON_NAME_SET_BY_USER: (_Code.FAILED_PRECONDITION, "A user chose the name."),
    reasons.ERROR_REASON_SESSION_NEVER_STARTED: (_Code.NOT_FOUND, "No harness ever knew the session."),
    reasons.ERROR_REASON_HARNESS_SESSION_LOST: (_Code.FAILED_PRECONDITION, "The harness lost the session."),
    reasons.ERROR_REASON_RUNNER_NOT_READY: (_Code.UNAVAILABLE, "The runner is not ready; try again shortly."),
    reasons.ERROR_REASON_INTERACTION_NOT_PENDING: (_Code.FAILED_PRECONDITION, "The interaction is not pending."),
    reasons.ERROR_REASON_TOOL_BINDING_UNRESOLVED: (_Code.FAILED_PRECONDITION, "A tool binding has no value."),
    reasons.ERROR_REASON_SHUTTING_DOWN: (_Code.UNAVAILABLE, "The server is stopping; try another."),
    reasons.ERROR_REASON_STORAGE_UNAVAILABLE: (_Code.UNAVAILABLE, "The storage is not available; try again."),
    reasons.ERROR_REASON_UNIMPLEMENTED: (_Code.UNIMPLEMENTED, "This server does not serve this yet."),
    reasons.ERROR_REASON_INTERNAL: (_Code.INTERNAL, "An unexpected error; the error id is in the server's log."),
    reasons.ERROR_REASON_DEADLINE_EXCEEDED: (_Code.DEADLINE_EXCEEDED, "The call ran out of time."),
    reasons.ERROR_REASON_TOOL_CALL_CONFLICT: (_Code.FAILED_PRECONDITION, "The call id was begun as another call."),
}


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field that is wrong: its path in the request, and why, without the value that was sent."""

    field: str
    description: str


class Refused(Exception):
    """A call is refused for a reason of the contract.

    `metadata` is what error_reason.proto names for the reason; `retry_after` is in seconds.
    """

    def __init__(
        self,
        reason: Reason,
        *,
        metadata: Mapping[str, str] | None = None,
        fields: Iterable[FieldViolation] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(reasons.ErrorReason.Name(reason))
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.fields: Sequence[FieldViolation] = tuple(fields)
        self.retry_after = retry_after

    @property
    def code(self) -> grpc.StatusCode:
        """The gRPC code that the reason comes with."""
        return CATALOG[self.reason][0]


def not_found(resource: str) -> Refused:
    """There is no such `resource` ("session", "run" …) that the caller can see."""
    return Refused(reasons.ERROR_REASON_RESOURCE_NOT_FOUND, metadata={"resource": resource})


def invalid(field: str, description: str) -> Refused:
    """One field of the request is wrong."""
    return Refused(reasons.ERROR_REASON_INVALID_FIELD, fields=[FieldViolation(field, description)])


def reason_name(reason: Reason) -> str:
    """The reason as ErrorInfo carries it, for example "SESSION_BUSY"."""
    return reasons.ErrorReason.Name(reason).removeprefix(PREFIX)


def to_status(error: BaseException) -> status_pb2.Status:
    """The status to answer for `error`; what nobody foresaw is logged and leaves only an opaque id."""
    refused = error if isinstance(error, Refused) else _unexpected(error)
    code, text = CATALOG[refused.reason]
    status = status_pb2.Status(code=code.value[0], message=text)
    metadata = {_cut(key): _cut(value) for key, value in refused.metadata.items()}
    _add(status, error_details_pb2.ErrorInfo(reason=reason_name(refused.reason), domain=DOMAIN, metadata=metadata))
    if refused.retry_after is not None:
        millis = math.ceil(max(0.0, refused.retry_after) * 1000)
        delay = duration_pb2.Duration(seconds=millis // 1000, nanos=millis % 1000 * 1_000_000)
        _add(status, error_details_pb2.RetryInfo(retry_delay=delay))
    if refused.fields:
        _add(status, _bad_request(refused.fields))
    return status


def _unexpected(error: BaseException) -> Refused:
    error_id = uuid.uuid4().hex
    _log.error("unexpected error", error_id=error_id, exc_info=error)
    return Refused(reasons.ERROR_REASON_INTERNAL, metadata={"error_id": error_id})


def _bad_request(fields: Sequence[FieldViolation]) -> error_details_pb2.BadRequest:
    shown = error_details_pb2.BadRequest()
    for violation in fields[:MAX_VIOLATIONS]:
        shown.field_violations.add(field=_cut(violation.field), description=_cut(violation.description))
    # Non-ASCII text takes up to four bytes a character, so the count alone does not bound the size.
    while shown.ByteSize() > MAX_DETAIL_BYTES:
        del shown.field_violations[-1]
    return shown


def _cut(text: str) -> str:
    return text if len(text) <= MAX_PART else text[: MAX_PART - 1] + "…"


def _add(status: status_pb2.Status, detail: message.Message) -> None:
    status.details.add().Pack(detail)


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """What a failed call's status says, for clients. Empty where the peer sent no details of ours."""

    code: grpc.StatusCode
    reason: str
    metadata: Mapping[str, str]
    fields: tuple[FieldViolation, ...]
    retry_after: float | None
    """Seconds to wait before another try; None when the peer did not say."""

    @classmethod
    def of(cls, error: grpc.RpcError) -> "ErrorDetail":
        """Reads a sync or aio RpcError; a malformed or foreign trailer reads as no details."""
        info, retry, bad = (
            error_details_pb2.ErrorInfo(),
            error_details_pb2.RetryInfo(),
            error_details_pb2.BadRequest(),
        )
        details = _details(error)
        ours = any(each.Unpack(info) for each in details) and info.domain == DOMAIN
        delays = any(each.Unpack(retry) for each in details)
        any(each.Unpack(bad) for each in details)
        return cls(
            code=error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else _Code.UNKNOWN,
            reason=info.reason if ours else "",
            metadata=dict(info.metadata) if ours else {},
            fields=tuple(FieldViolation(each.field, each.description) for each in bad.field_violations),
            retry_after=retry.retry_delay.ToTimedelta().total_seconds() if delays else None,
        )


def _details(error: grpc.RpcError) -> Sequence[any_pb2.Any]:
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return ()
    try:
        status = rpc_status.from_call(cast(grpc.Call, error))
        return () if status is None else tuple(status.details)
    except (ValueError, message.DecodeError):
        return ()


def reason(error: grpc.RpcError) -> str:
    """The reason of a failed call, for example "SESSION_BUSY"; empty when its status has none of ours."""
    return ErrorDetail.of(error).reason


def metadata(error: grpc.RpcError) -> Mapping[str, str]:
    """The metadata that came with the reason of a failed call."""
    return ErrorDetail.of(error).metadata
