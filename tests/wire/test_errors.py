"""One error mapper: code, fixed text, details, and nothing of what happened inside (SPEC 11.2; CASES 18)."""

import asyncio
import pickle

import grpc
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from turnkeeper.v1 import error_reason_pb2 as reasons
from turnkeeper.v1 import run_service_pb2
from turnkeeper.v1.run_service_pb2_grpc import RunServiceStub
from turnkeeper.wire import errors
from turnkeeper.wire.context import Call, Credential
from turnkeeper.wire.errors import CATALOG, ErrorDetail, FieldViolation, Refused

from tests.wire.conftest import RUN, Wire, bearer

ID = "0199e0d0-1111-7222-8333-4444444444aa"


def _code_in_the_contract(reason: int) -> str:
    """The gRPC code that the comment of error_reason.proto starts with."""
    from importlib import resources

    source = resources.files("turnkeeper.v1").joinpath("error_reason.proto").read_text(encoding="utf-8")
    before, found, _ = source.partition(f"  {reasons.ErrorReason.Name(reason)} = ")  # type: ignore[arg-type]
    assert found
    comment: list[str] = []
    for line in reversed(before.rstrip("\n").splitlines()):
        if not line.strip().startswith("//"):
            break
        comment.insert(0, line.strip(" /"))
    return " ".join(comment).split(":")[0]


@pytest.mark.spec("11.2")
def test_every_reason_has_the_code_that_the_contract_says() -> None:
    sendable = [reason for reason in reasons.ErrorReason.values() if reason != reasons.ERROR_REASON_UNSPECIFIED]
    assert set(CATALOG) == set(sendable)
    assert {reason: CATALOG[reason][0].name for reason in sendable} == {
        reason: _code_in_the_contract(reason) for reason in sendable
    }
    assert all(text and len(text) < 100 for _, text in CATALOG.values())


class Raising:
    """A servicer that raises what a test asks for."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def GetRun(self, request: run_service_pb2.GetRunRequest, call: Call) -> run_service_pb2.GetRunResponse:
        raise self.error


async def _answer(wire: Wire, error: BaseException) -> grpc.aio.AioRpcError:
    async with wire.serving({RUN: Raising(error)}) as server, grpc.aio.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await RunServiceStub(channel).GetRun(
                run_service_pb2.GetRunRequest(run_id=ID), metadata=bearer(wire.issuer.token())
            )
        return caught.value


@pytest.mark.spec("11.2")
async def test_a_refusal_arrives_whole(wire: Wire) -> None:
    refused = Refused(
        reasons.ERROR_REASON_QUEUE_FULL,
        metadata={"a": "b"},
        fields=[FieldViolation("input", "is too long")],
        retry_after=1.25,
    )
    error = await _answer(wire, refused)
    assert error.details() == "Too many runs are queued."
    assert ErrorDetail.of(error) == ErrorDetail(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", {"a": "b"}, (FieldViolation("input", "is too long"),), 1.25
    )
    assert (errors.reason(error), errors.metadata(error)) == ("QUEUE_FULL", {"a": "b"})


@pytest.mark.spec("11.2")
async def test_what_nobody_foresaw_is_an_opaque_id_that_the_log_has(wire: Wire) -> None:
    with structlog.testing.capture_logs() as logs:
        error = await _answer(wire, RuntimeError("connect to postgres://app:hunter2@db failed " + "x" * 30_000))
    detail = ErrorDetail.of(error)
    assert (detail.code, detail.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "hunter2" not in repr(error)
    assert len(error.details() or "") < 1024
    [line] = [line for line in logs if line["event"] == "unexpected error"]
    assert line["error_id"] == detail.metadata["error_id"]
    assert "hunter2" in str(line["exc_info"])


@pytest.mark.spec("11.2")
@pytest.mark.parametrize("unit", ["f", "é", "\U0001f600"])
async def test_four_hundred_invalid_fields_keep_the_code(wire: Wire, unit: str) -> None:
    fields = [FieldViolation(f"f{n}." + unit * 5000, unit * 5000) for n in range(400)]
    metadata = {"m": unit * 5000}
    error = await _answer(wire, Refused(reasons.ERROR_REASON_CONFIG_INVALID, fields=fields, metadata=metadata))
    detail = ErrorDetail.of(error)
    assert (detail.code, detail.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "CONFIG_INVALID")
    assert 3 <= len(detail.fields) <= errors.MAX_VIOLATIONS
    assert detail.fields[0].field.startswith("f0.")


@pytest.mark.spec("11.2")
def test_only_so_many_violations_are_sent() -> None:
    fields = [FieldViolation(f"f{n}", "why") for n in range(400)]
    status = errors.to_status(Refused(reasons.ERROR_REASON_INVALID_FIELD, fields=fields))
    bad = error_details_pb2.BadRequest()
    assert status.details[1].Unpack(bad)
    assert [each.field for each in bad.field_violations] == [f"f{n}" for n in range(errors.MAX_VIOLATIONS)]


@pytest.mark.spec("11.2")
@pytest.mark.parametrize(
    "wrapped",
    [
        ValueError("x"),
        OSError(5, "x"),
        grpc.aio.AbortError(),
        TimeoutError(),
        StopIteration(),
        asyncio.CancelledError(),
    ],
)
async def test_any_exception_is_internal(wire: Wire, wrapped: BaseException) -> None:
    assert errors.reason(await _answer(wire, wrapped)) == "INTERNAL"


def test_shortcuts() -> None:
    assert (errors.not_found("session").metadata, errors.not_found("session").code) == (
        {"resource": "session"},
        grpc.StatusCode.NOT_FOUND,
    )
    assert errors.invalid("name", "why").fields == (FieldViolation("name", "why"),)


def _status(code: int, *details: object) -> grpc.aio.AioRpcError:
    status = status_pb2.Status(code=code, message="m")
    for detail in details:
        status.details.add().Pack(detail)
    trailer = grpc.aio.Metadata(("grpc-status-details-bin", status.SerializeToString()))
    return grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), trailer, "m")


def test_foreign_and_malformed_details_read_as_none() -> None:
    info = error_details_pb2.ErrorInfo(reason="SESSION_BUSY", domain="elsewhere")
    plain = ErrorDetail(grpc.StatusCode.NOT_FOUND, "", {}, (), None)
    assert ErrorDetail.of(_status(5, info)) == plain
    assert ErrorDetail.of(_status(3)) == plain  # a code that contradicts the call's own
    broken = grpc.aio.Metadata(("grpc-status-details-bin", b"\xff\xff\xff"))
    assert ErrorDetail.of(grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, broken, broken, "m")) == plain
    assert ErrorDetail.of(grpc.RpcError()) == ErrorDetail(grpc.StatusCode.UNKNOWN, "", {}, (), None)


@pytest.mark.spec("1.1")
def test_a_credential_shows_nowhere() -> None:
    credential = Credential("s3cret")
    assert "s3cret" not in f"{credential!r} {credential} {[credential]}"
    assert credential.reveal() == "s3cret"
    with pytest.raises(TypeError):
        pickle.dumps(credential)
