"""gRPC tools against a foreign server that logs what reaches it (SPEC 7.10)."""

import asyncio
import datetime
import ipaddress
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from pydantic import SecretStr
from turnkeeper.v1 import run_pb2
from turnkeeper.wire.configs import Effect, GrpcMethod, ToolConfig
from turnkeeper.wire.context import Credential

from runner_service.tools.descriptors import KEPT_SECONDS, Descriptors
from runner_service.tools.grpc_calls import GrpcTools
from runner_service.tools.headers import ToolHeaders
from runner_service.tools.model import ToolResult
from runner_service.tools.outgoing import Outgoing
from tests.far.grpc_tools import CHARGE, SERVICE, Abort, GrpcCall, GrpcToolServer, descriptor_set

SUCCEEDED = run_pb2.TOOL_CALL_STATE_SUCCEEDED
FAILED = run_pb2.TOOL_CALL_STATE_FAILED
UNKNOWN = run_pb2.TOOL_CALL_STATE_UNKNOWN
NO_HEADERS = ToolHeaders({}, ())
RESULT_BYTES = 2048
BOTH = pytest.mark.parametrize(("effect", "open_state"), [(Effect.READ, FAILED), (Effect.WRITE, UNKNOWN)])


@pytest.fixture
async def far() -> AsyncIterator[GrpcToolServer]:
    async with GrpcToolServer("v1", "v1alpha") as server:
        yield server


@pytest.fixture
async def remote(far: GrpcToolServer) -> AsyncIterator[GrpcTools]:
    made = GrpcTools([far.target], RESULT_BYTES, NO_HEADERS)
    yield made
    await made.close()


async def call(
    remote: GrpcTools, target: str, body: dict[str, Any] | None = None, method: str = CHARGE, **more: Any
) -> ToolResult:
    found = GrpcMethod(target, method, more.pop("descriptor_set", None))
    outgoing = Outgoing("1.1.0", more.pop("seconds", 10.0), more.pop("key", "k-1"), more.pop("identity", None))
    return await remote.call(ToolConfig(name="t", grpc=found, **more), found, body or {}, outgoing)


@pytest.mark.spec("7.10")
@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_the_body_is_the_requests_json_form_by_reflection(version: str) -> None:
    async with GrpcToolServer(version) as far:
        remote = GrpcTools([far.target], RESULT_BYTES, NO_HEADERS)
        body = {"accountId": "a-1", "amount": 9007199254740993, "tags": ["x"], "due": "2026-01-02T03:04:05Z"}
        far.respond = lambda call: {"chargeId": "c-1", "amount": call.request["amount"], "due": call.request["due"]}
        result = await call(remote, far.target, body)
        await call(remote, far.target, body)
        await remote.close()
        assert json.loads(result.text) == {
            "chargeId": "c-1",
            "amount": "9007199254740993",
            "due": "2026-01-02T03:04:05Z",
        }
        assert result.state == SUCCEEDED
        seen = await far.call()
        assert seen.request == {**body, "amount": "9007199254740993"}
        assert seen.metadata["idempotency-key"] == "k-1"
        assert len(far.questions) == 1  # asked once, then known


@pytest.mark.spec("7.10")
async def test_a_descriptor_set_needs_no_reflection() -> None:
    async with GrpcToolServer() as far:
        remote = GrpcTools([far.target], RESULT_BYTES, NO_HEADERS)
        without = await call(remote, far.target, {"amount": 5})
        result = await call(remote, far.target, {"amount": 5}, descriptor_set=descriptor_set())
        await remote.close()
    assert (without.state, len(far.calls)) == (FAILED, 1)
    assert "no reflection" in without.text
    assert (result.state, json.loads(result.text)["amount"]) == (SUCCEEDED, "5")


@pytest.mark.spec("7.10")
async def test_a_descriptor_set_that_lacks_an_import_calls_nothing(far: GrpcToolServer, remote: GrpcTools) -> None:
    files = FileDescriptorSet.FromString(descriptor_set()).file
    partial = FileDescriptorSet(file=[files[-1]]).SerializeToString()
    result = await call(remote, far.target, descriptor_set=partial)
    assert (result.state, len(far.calls)) == (FAILED, 0)
    assert "lacks the file" in result.text


@pytest.mark.spec("7.10")
@pytest.mark.parametrize(
    "body",
    [
        {"nobody": 1},
        {"amount": "ten"},
        {"amount": 2**63},
        {"tags": "x"},
        {"due": "tomorrow"},
        {"extra": {"@type": "type.googleapis.com/unheard.Of"}},
        {"accountId": "mine", "account_id": "evil"},
        {"account_id": "evil", "accountId": "mine"},
        {"payer": {"userId": "mine", "user_id": "evil"}},
        {"shares": [{}, {"userId": "mine", "user_id": "evil"}]},
        {"byNumber": {"1": {"userId": "mine", "user_id": "evil"}}},
        {"byNumber": {"1": {"userId": "mine"}, "01": {"userId": "evil"}}},
        {"extra": {"@type": "x/far.billing.Party", "userId": "mine", "user_id": "evil"}},
    ],
)
async def test_arguments_that_do_not_fit_call_nothing(
    far: GrpcToolServer, remote: GrpcTools, body: dict[str, Any]
) -> None:
    result = await call(remote, far.target, body)
    assert (result.state, len(far.calls)) == (FAILED, 0)
    assert result.text.startswith("The arguments do not fit the method")


@pytest.mark.spec("7.10")
@pytest.mark.parametrize("name", ["Follow", "Collect", "Unheard"])
async def test_only_unary_methods_are_called(far: GrpcToolServer, remote: GrpcTools, name: str) -> None:
    result = await call(remote, far.target, method=f"{SERVICE}/{name}")
    assert (result.state, len(far.calls)) == (FAILED, 0)
    assert ("streaming" in result.text) is (name != "Unheard")


@pytest.mark.spec("7.10")
async def test_a_service_that_reflection_does_not_know(far: GrpcToolServer, remote: GrpcTools) -> None:
    result = await call(remote, far.target, method="far.billing.Nothing/Charge")
    assert (result.state, len(far.calls)) == (FAILED, 0)


@pytest.mark.spec("7.10")
async def test_a_target_that_is_not_allowed_gets_nothing(remote: GrpcTools) -> None:
    async with GrpcToolServer("v1") as other:
        result = await call(remote, other.target, descriptor_set=descriptor_set())
        assert (result.state, len(other.calls), len(other.questions)) == (FAILED, 0, 0)
        assert "not allowed" in result.text


@pytest.mark.spec("7.10", "3.7")
@BOTH
async def test_the_deadline_is_the_calls_and_goes_on_the_wire(
    far: GrpcToolServer, remote: GrpcTools, effect: Effect, open_state: run_pb2.ToolCallState.ValueType
) -> None:
    far.hold()
    result = await call(remote, far.target, effect=effect, seconds=0.5)
    seen = await far.call()
    assert seen.time_left is not None
    assert 0 < seen.time_left <= 0.5
    assert (result.state, result.text.partition(":")[0]) == (open_state, "The tool answered DEADLINE_EXCEEDED")
    await far.cancellations.at()


@pytest.mark.spec("7.10", "4.4")
async def test_cancelling_cancels_the_call(far: GrpcToolServer, remote: GrpcTools) -> None:
    far.hold()
    calling = asyncio.create_task(call(remote, far.target))
    await far.call()
    calling.cancel()
    await far.cancellations.at(within=2.0)
    await asyncio.wait({calling})
    assert calling.cancelled()


@pytest.mark.spec("7.10")
@BOTH
async def test_a_server_that_goes_away_leaves_it_open_whether_the_call_took_effect(
    far: GrpcToolServer, remote: GrpcTools, effect: Effect, open_state: run_pb2.ToolCallState.ValueType
) -> None:
    far.hold()
    calling = asyncio.create_task(call(remote, far.target, effect=effect))
    await far.call()
    await far.stop()
    result = await calling
    assert result.state == open_state
    gone = await call(remote, far.target, effect=effect)
    assert (gone.state, gone.text) == (FAILED, "The tool could not be reached.")


@pytest.mark.spec("7.10")
@BOTH
@pytest.mark.parametrize(
    ("code", "is_open"),
    [
        (grpc.StatusCode.NOT_FOUND, False),
        (grpc.StatusCode.INTERNAL, False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, False),
        (grpc.StatusCode.UNAVAILABLE, True),
        (grpc.StatusCode.CANCELLED, True),
    ],
)
async def test_a_status_is_told_by_name_and_bounded(
    far: GrpcToolServer,
    remote: GrpcTools,
    effect: Effect,
    open_state: run_pb2.ToolCallState.ValueType,
    code: grpc.StatusCode,
    is_open: bool,
) -> None:
    def refuse(_: GrpcCall) -> dict[str, Any]:
        raise Abort(code, "no such account " + "x" * 5000)

    far.respond = refuse
    result = await call(remote, far.target, effect=effect)
    assert result.state == (open_state if is_open else FAILED)
    assert result.text.startswith(f"The tool answered {code.name}: no such account")
    assert len(result.text.encode()) < 2100
    assert len(far.calls) == 1  # UNAVAILABLE is not tried again


@pytest.mark.spec("7.10", "11.1")
async def test_a_large_answer_is_cut_and_a_strange_one_repaired(far: GrpcToolServer, remote: GrpcTools) -> None:
    far.respond = lambda _: {"note": "😀" * 100_000}
    large = await call(remote, far.target)
    assert large.state == SUCCEEDED
    assert len(large.text.encode()) < RESULT_BYTES + 32
    assert large.text.endswith("bytes]")
    far.respond = lambda _: {"note": "a\x00b"}
    strange = await call(remote, far.target)
    assert "\x00" not in strange.text
    far.respond = lambda _: {"note": "x" * (5 * 2**20)}
    huge = await call(remote, far.target)
    assert huge.state == UNKNOWN  # it came, so the call took effect
    far.respond = lambda _: b"\xff\xff\xff"
    assert (await call(remote, far.target)).state == UNKNOWN


@pytest.mark.spec("7.10")
async def test_headers_of_the_settings_go_to_their_target_alone(far: GrpcToolServer) -> None:
    async with GrpcToolServer("v1") as other:
        given = {far.target: {"Authorization": SecretStr("Bearer the-runners-own"), "X-Key": SecretStr("k-e-y-0001")}}
        targets = [far.target, other.target]
        remote = GrpcTools(targets, RESULT_BYTES, ToolHeaders(given, targets))
        far.respond = lambda call: {"note": " ".join(call.metadata.values())}
        result = await call(remote, far.target)
        await call(remote, other.target)
        marked = await call(remote, far.target, identity=Credential("token-of-the-caller"))
        await remote.close()
        metadata = (await far.call()).metadata
        assert (metadata["authorization"], metadata["x-key"]) == ("Bearer the-runners-own", "k-e-y-0001")
        assert far.questions[0]["x-key"] == "k-e-y-0001"
        assert not {"authorization", "x-key"} & (await other.call()).metadata.keys()
        assert (await far.call(2)).metadata["authorization"] == "Bearer token-of-the-caller"
        for each in (result, marked):
            assert not any(secret in each.text for secret in ("the-runners-own", "k-e-y-0001", "token-of-the-caller"))
            assert "[credential removed]" in each.text


async def test_the_callers_identity_does_not_go_to_the_reflection(far: GrpcToolServer, remote: GrpcTools) -> None:
    await call(remote, far.target, identity=Credential("token-of-the-caller"))
    assert "authorization" not in far.questions[0]


async def test_what_a_server_says_of_itself_is_forgotten_after_a_while(far: GrpcToolServer) -> None:
    now = 0.0
    descriptors = Descriptors(lambda: now)
    async with grpc.aio.insecure_channel(far.target) as channel:
        method = GrpcMethod(far.target, CHARGE)
        for now in (0.0, KEPT_SECONDS - 1, KEPT_SECONDS + 1):  # noqa: B007 - the clock reads it
            await descriptors.find(channel, method, {})
    assert len(far.questions) == 2


async def test_a_proxy_of_the_environment_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    async with GrpcToolServer("v1") as far:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.delenv("no_proxy", raising=False)
        remote = GrpcTools([far.target], RESULT_BYTES, NO_HEADERS)
        assert (await call(remote, far.target)).state == SUCCEEDED
        await remote.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, bytes]:
    """A self-signed certificate for 127.0.0.1: its file, itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "far")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    path.write_bytes(pem)
    return path, pem, private


@pytest.mark.spec("7.10")
async def test_a_target_is_called_over_tls_when_the_settings_say_so(authority: tuple[Path, bytes, bytes]) -> None:
    path, certificate, key = authority
    async with GrpcToolServer("v1", secure=grpc.ssl_server_credentials([(key, certificate)])) as far:
        trusting = GrpcTools([f"grpcs://{far.target}"], RESULT_BYTES, NO_HEADERS, tls_ca=path)
        plain = GrpcTools([far.target], RESULT_BYTES, NO_HEADERS)
        strange = GrpcTools([f"grpcs://{far.target}"], RESULT_BYTES, NO_HEADERS)
        results = [await call(each, far.target, seconds=2.0) for each in (trusting, plain, strange)]
        for each in (trusting, plain, strange):
            await each.close()
    assert [result.state for result in results] == [SUCCEEDED, FAILED, FAILED]
    assert len(far.calls) == 1
