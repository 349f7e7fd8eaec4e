"""The table of who may call what is complete, and holds (SPEC 1.2, 1.3)."""

from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from turnkeeper.wire import policy
from turnkeeper.wire.context import TokenKind
from turnkeeper.wire.errors import ErrorDetail, Refused
from turnkeeper.wire.policy import METHODS, SCOPES

from tests.wire.conftest import SERVICES, Wire, bearer

RPCS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods
}


@pytest.mark.spec("1.3")
def test_every_rpc_is_listed_and_nothing_else() -> None:
    assert set(METHODS) == set(RPCS)
    assert {scope for access in METHODS.values() for scope in access.kinds.values() if scope} == SCOPES


@pytest.mark.spec("1.1")
def test_only_the_verification_keys_are_public() -> None:
    assert [method for method, access in METHODS.items() if access.public] == [
        "/turnkeeper.v1.IdentityService/GetVerificationKeys"
    ]


@pytest.mark.spec("1.2")
def test_the_kinds_are_those_of_the_rules() -> None:
    def taking(kind: TokenKind) -> set[str]:
        return {method.split(".")[-1] for method, access in METHODS.items() if kind in access.kinds}

    turn = {method.split(".")[-1] for method in METHODS if "TurnService" in method}
    own = {"SessionService/GetSession", "SessionService/ListMessages", "SessionService/UpdateSession"}
    commits = {f"AgentService/{name}" for name in ("UpdateAgent", "CommitRevision", "PatchRevision")}
    assert taking(TokenKind.RUN) == turn | own | commits | {"RunnerService/ExecuteTurn"}
    assert taking(TokenKind.SERVICE) == {
        "RunnerService/DescribeHarnessSessions",
        "RunnerService/DeleteHarnessSession",
    }
    direct = {"RunnerService/ExecuteTurn", "TurnService/BeginTurn", "TurnService/ResolveTurnContext"}
    assert taking(TokenKind.USER) & (turn | {"RunnerService/ExecuteTurn"}) == direct
    assert all(METHODS[f"/turnkeeper.v1.{name}"].kinds[TokenKind.USER] == "runner:invoke" for name in direct)


@pytest.mark.spec("1.3")
def test_a_method_that_nobody_listed_is_refused() -> None:
    with pytest.raises(Refused, match="TOKEN_KIND_REFUSED"):
        policy.authorise(METHODS.get("/turnkeeper.v1.RunService/New"), TokenKind.USER, SCOPES)


def _token(wire: Wire, kind: TokenKind, scopes: frozenset[str]) -> str:
    if kind is TokenKind.USER:
        return wire.issuer.token(scopes=sorted(scopes))
    if kind is TokenKind.RUN:
        return wire.run_token(scope=" ".join(sorted(scopes)))
    return wire.service_token()


async def _call(channel: Any, path: str, token: str | None) -> ErrorDetail:
    """Calls any method with an empty request; the servicers are empty, so every call fails somewhere."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _invoke(channel, path, bearer(token) if token else ())
    return ErrorDetail.of(caught.value)


async def _invoke(channel: Any, path: str, metadata: object) -> None:
    rpc = RPCS[path]
    request = GetMessageClass(rpc.input_type)()
    codecs = {"request_serializer": type(request).SerializeToString, "response_deserializer": bytes}
    if rpc.client_streaming:
        await channel.stream_stream(path, **codecs)(iter([request]), metadata=metadata).read()
    elif rpc.server_streaming:
        await channel.unary_stream(path, **codecs)(request, metadata=metadata).read()
    else:
        await channel.unary_unary(path, **codecs)(request, metadata=metadata)


@pytest.mark.spec("1.1", "1.2", "1.3")
async def test_every_method_holds_to_its_row(wire: Wire) -> None:
    servicers = {service: object() for service in SERVICES}
    async with wire.serving(servicers) as server, grpc.aio.insecure_channel(server.address) as channel:
        for path, access in METHODS.items():
            if access.public:
                assert (await _call(channel, path, None)).reason == "UNIMPLEMENTED"
                continue
            assert (await _call(channel, path, None)).reason == "UNAUTHENTICATED", path
            for kind in TokenKind:
                detail = await _call(channel, path, _token(wire, kind, SCOPES))
                if kind not in access.kinds:
                    assert (detail.code, detail.reason) == (
                        grpc.StatusCode.PERMISSION_DENIED,
                        "TOKEN_KIND_REFUSED",
                    ), (path, kind)
                    continue
                # The token passed: what came next refused the call.
                assert detail.reason in ("UNIMPLEMENTED", "INVALID_FIELD"), (path, kind)
                if scope := access.kinds[kind]:
                    detail = await _call(channel, path, _token(wire, kind, SCOPES - {scope}))
                    assert (detail.code, detail.reason, detail.metadata) == (
                        grpc.StatusCode.PERMISSION_DENIED,
                        "SCOPE_MISSING",
                        {"scope": scope},
                    ), (path, kind)
