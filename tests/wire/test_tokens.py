"""Which tokens pass, over a real server: what is wrong with one is never said (SPEC 1.2, 1.4)."""

import base64
import dataclasses
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import structlog
from cryptography.hazmat.primitives import serialization
from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey
from turnkeeper.v1 import identity_service_pb2
from turnkeeper.v1.identity_service_pb2_grpc import IdentityServiceStub
from turnkeeper.wire import errors
from turnkeeper.wire.context import Call, TokenKind
from turnkeeper.wire.errors import ErrorDetail
from turnkeeper.wire.keys import KeySource
from turnkeeper.wire.tokens import Verifier, user_trust

from tests.wire.conftest import IDENTITY, Wire, bearer

FIXED_TEXT = "A valid bearer token is required."


class Identity:
    """Says who calls, and counts how often it is reached."""

    def __init__(self) -> None:
        self.reached = 0

    async def WhoAmI(
        self, request: identity_service_pb2.WhoAmIRequest, call: Call
    ) -> identity_service_pb2.WhoAmIResponse:
        self.reached += 1
        context = call.context
        return identity_service_pb2.WhoAmIResponse(
            tenant_id=context.tenant_id, user_id=context.user_id, roles=context.roles, scopes=sorted(context.scopes)
        )


class Door:
    """One server to knock at."""

    def __init__(self, wire: Wire, channel: grpc.aio.Channel, servicer: Identity) -> None:
        self.wire = wire
        self.servicer = servicer
        self._stub = IdentityServiceStub(channel)

    async def knock(self, *metadata: tuple[str, str | bytes]) -> identity_service_pb2.WhoAmIResponse:
        return await self._stub.WhoAmI(identity_service_pb2.WhoAmIRequest(), metadata=metadata)

    async def refuses(self, *metadata: tuple[str, str | bytes]) -> None:
        """The one answer to every bad token; nothing was reached."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.knock(*metadata)
        error = caught.value
        assert (error.code(), error.details()) == (grpc.StatusCode.UNAUTHENTICATED, FIXED_TEXT)
        assert ErrorDetail.of(error) == ErrorDetail(error.code(), "UNAUTHENTICATED", {}, (), None)
        assert self.servicer.reached == 0


@pytest.fixture
async def door(wire: Wire) -> AsyncIterator[Door]:
    servicer = Identity()
    async with wire.serving({IDENTITY: servicer}) as server, grpc.aio.insecure_channel(server.address) as channel:
        yield Door(wire, channel, servicer)


@pytest.mark.spec("1.1", "1.2")
async def test_a_user_token_says_who_calls(door: Door) -> None:
    token = door.wire.issuer.token(tenant="acme", user="ada", scopes=["runs:read"], roles=["ops", "dev"])
    answer = await door.knock(*bearer(token))
    assert (answer.tenant_id, answer.user_id) == ("acme", "ada")
    assert (list(answer.roles), list(answer.scopes)) == (["ops", "dev"], ["runs:read"])


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_scheme_has_no_case(door: Door, scheme: str) -> None:
    assert (await door.knock(("authorization", f"{scheme} {door.wire.issuer.token()}"))).user_id == "ada"


@pytest.mark.parametrize("header", [{"typ": None}, {"typ": "JWT"}, {"typ": "at+jwt"}, {"typ": "application/at+jwt"}])
async def test_user_tokens_come_with_several_types(door: Door, header: dict[str, Any]) -> None:
    issuer = door.wire.issuer
    assert (await door.knock(*bearer(issuer.sign(issuer.claims(), **header)))).user_id == "ada"


async def test_an_audience_may_be_one_of_a_list(door: Door) -> None:
    token = door.wire.issuer.token(aud=["other", door.wire.issuer.audience])
    assert (await door.knock(*bearer(token))).user_id == "ada"


@pytest.mark.spec("1.4")
async def test_the_authorization_must_be_one_bearer_token(door: Door) -> None:
    token = door.wire.issuer.token()
    await door.refuses()
    await door.refuses(("authorization", f"Bearer {token}"), ("authorization", f"Bearer {token}"))
    await door.refuses(("authorization", f"Bearer {token}"), ("authorization", "Basic eDp5"))
    for value in ("", "Bearer", "Bearer ", token, f"Basic {token}", f"Bearer {token} {token}", f"Bearer {token},x"):
        await door.refuses(("authorization", value))


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _unsigned(claims: dict[str, Any], header: dict[str, Any]) -> str:
    return ".".join([*(_base64(json.dumps(part).encode()) for part in (header, claims)), ""])


@pytest.mark.spec("1.4")
async def test_an_unsigned_token_is_refused(door: Door) -> None:
    claims = door.wire.issuer.claims()
    for alg in ("none", "None", "NONE", ""):
        await door.refuses(*bearer(_unsigned(claims, {"alg": alg, "kid": "issuer-1", "typ": "JWT"})))
    await door.refuses(*bearer(_unsigned(claims, {"kid": "issuer-1", "typ": "JWT"})))


@pytest.mark.spec("1.4")
async def test_an_hmac_made_with_the_public_key_is_refused(door: Door) -> None:
    issuer = door.wire.issuer
    public = issuer.key.get_op_key("verify")
    raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    jwk = json.dumps(issuer.key.as_dict(private=False)).encode()
    for secret in (raw, pem, jwk):
        # By hand: the library refuses to sign such a thing.
        signed = _unsigned(issuer.claims(), {"alg": "HS256", "kid": "issuer-1", "typ": "JWT"})
        await door.refuses(*bearer(signed + _base64(hmac.digest(secret, signed[:-1].encode(), "sha256"))))


@pytest.mark.spec("1.4")
@pytest.mark.parametrize("kid", ["unknown", "session-1", "", None, "ISSUER-1"])
async def test_an_unknown_key_is_refused(door: Door, kid: str | None) -> None:
    await door.refuses(*bearer(door.wire.issuer.sign(door.wire.issuer.claims(), kid=kid)))


@pytest.mark.spec("1.4")
async def test_another_signature_is_refused(door: Door) -> None:
    issuer = door.wire.issuer
    stranger = OKPKey.generate_key("Ed25519", {"kid": "issuer-1"})
    await door.refuses(*bearer(issuer.sign(issuer.claims(), key=stranger)))
    head, body, signature = issuer.token().split(".")
    other = issuer.token(user="mallory").split(".")[1]
    await door.refuses(*bearer(f"{head}.{other}.{signature}"))
    await door.refuses(*bearer(f"{head}.{body}."))
    await door.refuses(*bearer(f"{head}.{body}"))
    await door.refuses(*bearer("x" * 5_000))
    curve = ECKey.generate_key("P-256", {"kid": "issuer-1"})
    header = {"alg": "ES256", "kid": "issuer-1", "typ": "JWT"}
    await door.refuses(*bearer(jwt.encode(header, issuer.claims(), curve)))


@pytest.mark.spec("1.4")
async def test_a_key_in_the_header_is_not_trusted(door: Door) -> None:
    issuer = door.wire.issuer
    stranger = OKPKey.generate_key("Ed25519", {"kid": "issuer-1"})
    token = jwt.encode(
        {"alg": "Ed25519", "kid": "issuer-1", "typ": "JWT", "jwk": stranger.as_dict(private=False)},
        issuer.claims(),
        stranger,
        algorithms=["Ed25519"],
    )
    await door.refuses(*bearer(token))


NOW = int(time.time())


@pytest.mark.spec("1.4")
@pytest.mark.parametrize(
    "exp",
    [None, float("nan"), float("inf"), float("-inf"), True, "9999999999", str(NOW), [], {}, 0, -1, NOW - 1, 10**30],
    # Named: pytest-xdist's workers must agree on the ids, and each reads the clock for itself.
    ids=["null", "nan", "inf", "-inf", "true", "text", "now-as-text", "array", "object", "0", "-1", "past", "far"],
)
async def test_an_expiry_must_be_a_number_ahead(door: Door, exp: Any) -> None:
    await door.refuses(*bearer(door.wire.issuer.token(exp=exp)))


@pytest.mark.spec("1.4")
@pytest.mark.parametrize(
    "overrides",
    [
        {"exp": None, "EXP": NOW + 60},
        {"nbf": NOW + 3600},
        {"nbf": "x"},
        {"iat": NOW + 3600},
        {"iat": True},
        {"aud": None},
        {"aud": "other"},
        {"aud": ["other"]},
        {"aud": "turnkeeper-turn"},
        {"iss": None},
        {"iss": "https://issuer.example/"},
        {"iss": "turnkeeper-session-service"},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "a\nb"},
        {"sub": "x" * 256},
        {"tenant_id": None},
        {"tenant_id": ""},
        {"tenant_id": ["acme"]},
        {"tenant_id": "a\x00b"},
        {"roles": "ops"},
        {"roles": [1]},
        {"scope": ["runs:read"]},
    ],
)
async def test_every_other_claim_is_checked(door: Door, overrides: dict[str, Any]) -> None:
    claims = door.wire.issuer.claims() | overrides
    present = {name: value for name, value in claims.items() if value is not None}
    await door.refuses(*bearer(door.wire.issuer.sign(present)))


@pytest.mark.spec("1.4")
@pytest.mark.parametrize("typ", ["run+jwt", "service+jwt", "tool+jwt", "id+jwt", 7])
async def test_another_type_is_refused(door: Door, typ: Any) -> None:
    issuer = door.wire.issuer
    if typ == 7:
        await door.refuses(*bearer(_unsigned(issuer.claims(), {"alg": "Ed25519", "kid": "issuer-1", "typ": 7})))
        return
    await door.refuses(*bearer(issuer.sign(issuer.claims(), typ=typ)))


@pytest.mark.spec("1.2", "1.4")
async def test_no_issuer_vouches_for_another_kind(door: Door) -> None:
    wire = door.wire
    # The organisation's key says "run token", the session service's says "user token": neither is believed.
    await door.refuses(*bearer(wire.issuer.sign(wire.session.run_claims(), typ="run+jwt")))
    await door.refuses(*bearer(wire.issuer.sign(wire.issuer.claims(), key=wire.session.key, kid="session-1")))
    await door.refuses(*bearer(wire.run_token(aud=wire.issuer.audience)))
    await door.refuses(*bearer(wire.issuer.sign(wire.session.run_claims(), key=wire.session.key, kid="session-1")))


@pytest.mark.spec("1.2")
@pytest.mark.parametrize(
    "overrides",
    [
        {"attempt": 0},
        {"attempt": True},
        {"attempt": "1"},
        {"attempt": 1.5},
        {"attempt": None},
        {"run_id": None},
        {"run_id": "x"},
        {"run_id": str(uuid.UUID(int=2)).upper().replace("0", "A")},
        {"session_id": "{" + str(uuid.UUID(int=1)) + "}"},
    ],
)
async def test_a_run_token_names_one_attempt(wire: Wire, overrides: dict[str, Any]) -> None:
    good = await wire.verifier.verify(wire.run_token())
    assert good.kind is TokenKind.RUN
    assert good.run is not None
    assert (good.run.session_id, good.run.run_id, good.run.attempt) == (str(uuid.UUID(int=1)), str(uuid.UUID(int=2)), 1)
    with pytest.raises(errors.Refused, match="UNAUTHENTICATED"):
        await wire.verifier.verify(wire.run_token(**overrides))


@pytest.mark.parametrize("published", [None, "EdDSA", "Ed25519"])
async def test_both_names_of_ed25519_are_accepted(wire: Wire, published: str | None) -> None:
    key = OKPKey.generate_key("Ed25519", {"kid": "k"})
    jwk = {**key.as_dict(private=False), **({"alg": published} if published else {})}
    keys = KeySource.fixed(json.dumps({"keys": [jwk]}))
    verifier = Verifier([user_trust(wire.issuer.name, wire.issuer.audience, keys)])
    for alg in ("Ed25519", "EdDSA"):
        signed = ".".join(_unsigned(wire.issuer.claims(), {"alg": alg, "kid": "k", "typ": "JWT"}).split(".")[:2])
        private: Any = key.get_op_key("sign")
        signature = private.sign(signed.encode())  # by hand: joserfc's signer warns of the old name
        assert (await verifier.verify(f"{signed}.{_base64(signature)}")).user_id == "ada"


@pytest.mark.spec("1.4")
async def test_a_remembered_token_still_expires(wire: Wire) -> None:
    now = time.time()
    verifier = Verifier(
        [user_trust(wire.issuer.name, wire.issuer.audience, KeySource.file(wire.issuer.jwks_path))], clock=lambda: now
    )
    token = wire.issuer.token(exp=int(now) + 5)
    assert (await verifier.verify(token)).expire_time == int(now) + 5
    now += 4.9 - (now % 1)
    await verifier.verify(token)
    now += 0.2
    with pytest.raises(errors.Refused, match="UNAUTHENTICATED"):
        await verifier.verify(token)


@pytest.mark.spec("1.4")
async def test_a_remembered_token_ends_with_its_key(wire: Wire) -> None:
    now, jwks = 0.0, wire.issuer.jwks_path.read_text()

    async def fetch() -> str:
        return jwks

    source = KeySource(fetch, max_age=300, clock=lambda: now)
    verifier = Verifier([user_trust(wire.issuer.name, wire.issuer.audience, source)])
    token = wire.issuer.token()
    await verifier.verify(token)
    now, jwks = 301.0, '{"keys": []}'
    await source.find("another")  # whoever asks first has the keys read again
    with pytest.raises(errors.Refused, match="UNAUTHENTICATED"):
        await verifier.verify(token)


@pytest.mark.spec("1.4")
async def test_a_trust_takes_only_its_own_algorithms(wire: Wire) -> None:
    trust = user_trust(wire.issuer.name, wire.issuer.audience, KeySource.file(wire.issuer.jwks_path))
    token = wire.issuer.token()
    await Verifier([trust]).verify(token)
    with pytest.raises(errors.Refused, match="UNAUTHENTICATED"):
        await Verifier([dataclasses.replace(trust, algorithms=frozenset({"RS256"}))]).verify(token)


@pytest.mark.spec("1.4")
async def test_a_key_signs_only_with_its_own_algorithm(wire: Wire) -> None:
    signer = RSAKey.generate_key(2048, {"kid": "k"})
    public = signer.as_dict(private=False)
    header = {"kid": "k", "typ": "JWT"}
    token = jwt.encode({**header, "alg": "PS256"}, wire.issuer.claims(), signer, algorithms=["PS256"])
    for alg, accepted in (("PS256", True), ("RS256", False)):
        keys = KeySource.fixed(json.dumps({"keys": [{**public, "alg": alg}]}))
        verifier = Verifier([user_trust(wire.issuer.name, wire.issuer.audience, keys)])
        if accepted:
            await verifier.verify(token)
        else:
            with pytest.raises(errors.Refused, match="UNAUTHENTICATED"):
                await verifier.verify(token)


async def test_only_so_many_tokens_are_remembered(wire: Wire) -> None:
    reads = 0
    jwks = wire.issuer.jwks_path.read_text()

    async def fetch() -> str:
        nonlocal reads
        reads += 1
        return jwks

    trust = user_trust(wire.issuer.name, wire.issuer.audience, KeySource(fetch))
    verifier = Verifier([trust], capacity=3)
    for user in "abcdef":
        await verifier.verify(wire.issuer.token(user=user))
    assert len(verifier._remembered) == 3
    assert reads == 1


async def test_the_log_has_the_check_but_not_the_token(wire: Wire) -> None:
    token = wire.issuer.token(exp=1)
    with structlog.testing.capture_logs() as logs, pytest.raises(errors.Refused):
        await wire.verifier.verify(token)
    assert [line["check"] for line in logs] == ["exp"]
    assert token not in repr(logs)
