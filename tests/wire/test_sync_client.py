"""The sync client's side of an error, over grpcio-testing's channel: what it is honestly good for."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc_testing
import pytest
from grpc_status import rpc_status
from turnkeeper.v1 import error_reason_pb2, run_service_pb2
from turnkeeper.v1.run_service_pb2_grpc import RunServiceStub
from turnkeeper.wire import errors
from turnkeeper.wire.errors import ErrorDetail, FieldViolation, Refused, to_status

from tests.wire.conftest import RUN


def _ask(channel: grpc.Channel) -> None:
    RunServiceStub(channel).GetRun(run_service_pb2.GetRunRequest(run_id="x"))


def _answered(trailers: Any, code: grpc.StatusCode, text: str) -> grpc.RpcError:
    """The error that a sync client gets for this answer."""
    channel = grpc_testing.channel([RUN], grpc_testing.strict_fake_time(0))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(_ask, channel)
        _, request, rpc = channel.take_unary_unary(RUN.methods_by_name["GetRun"])
        assert request.run_id == "x"
        rpc.send_initial_metadata(())
        rpc.terminate(None, trailers, code, text)
        error = asking.exception(timeout=10)
    assert isinstance(error, grpc.RpcError)
    return error


@pytest.mark.spec("11.2")
def test_a_sync_client_reads_the_details() -> None:
    refused = Refused(
        error_reason_pb2.ERROR_REASON_RESOURCE_NOT_FOUND,
        metadata={"resource": "run"},
        fields=[FieldViolation("run_id", "why")],
        retry_after=0.5,
    )
    status = rpc_status.to_status(to_status(refused))
    error = _answered(status.trailing_metadata, status.code, status.details)
    assert ErrorDetail.of(error) == ErrorDetail(
        grpc.StatusCode.NOT_FOUND, "RESOURCE_NOT_FOUND", {"resource": "run"}, (FieldViolation("run_id", "why"),), 0.5
    )
    assert errors.reason(error) == "RESOURCE_NOT_FOUND"


def test_a_peer_without_details_has_a_code_alone() -> None:
    error = _answered((), grpc.StatusCode.UNAVAILABLE, "connection reset")
    assert ErrorDetail.of(error) == ErrorDetail(grpc.StatusCode.UNAVAILABLE, "", {}, (), None)
