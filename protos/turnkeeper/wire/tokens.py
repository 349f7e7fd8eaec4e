"""Verifies the three kinds of bearer token (SPEC 1.2, 1.4). Whatever is wrong with one, the answer is the same."""

import hashlib
import math
import re
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jws import CompactSignature, JWSRegistry

from turnkeeper.v1 import error_reason_pb2
from turnkeeper.wire import json_text
from turnkeeper.wire.context import RunClaims, TokenKind
from turnkeeper.wire.errors import Refused
from turnkeeper.wire.json_text import JsonValue
from turnkeeper.wire.keys import KeySource

# What the session service signs, and for whom.
SESSION_ISSUER = "turnkeeper-session-service"
RUN_TYPE, RUN_AUDIENCE = "run+jwt", "turnkeeper-turn"
SERVICE_TYPE, SERVICE_AUDIENCE = "service+jwt", "turnkeeper-runner"
TOOL_TYPE = "tool+jwt"

# Asymmetric only: with an HMAC among them, whoever knows the public key could sign.
ALGORITHMS = frozenset(
    {"EdDSA", "Ed25519", "ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
)
MAX_TOKEN_BYTES = 16 * 1024
MAX_EXPIRY = 253_402_300_799  # the last second of the year 9999, beyond which no Timestamp goes
SKEW_SECONDS = 60.0  # how far ahead an issuer's clock may be in iat and nbf

_PRINCIPAL = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}")
_LOCALE = re.compile(r"[A-Za-z0-9-]{1,35}")

_log = structlog.get_logger("turnkeeper.tokens")


@dataclass(frozen=True, slots=True)
class Trust:
    """One issuer of one kind of token: what its tokens must say, and the keys that verify them.

    `types` are accepted `typ` headers in lower case; the empty string stands for a token without one.
    """

    kind: TokenKind
    issuer: str
    audience: str
    types: frozenset[str]
    keys: KeySource = field(repr=False)
    algorithms: frozenset[str] = ALGORITHMS


def user_trust(issuer: str, audience: str, keys: KeySource) -> Trust:
    """Trusts the organisation's issuer for user tokens."""
    return Trust(TokenKind.USER, issuer, audience, frozenset({"jwt", "at+jwt", ""}), keys)


def run_trust(keys: KeySource) -> Trust:
    """Trusts the session service for run tokens."""
    return Trust(TokenKind.RUN, SESSION_ISSUER, RUN_AUDIENCE, frozenset({RUN_TYPE}), keys)


def service_trust(keys: KeySource) -> Trust:
    """Trusts the session service for service tokens."""
    return Trust(TokenKind.SERVICE, SESSION_ISSUER, SERVICE_AUDIENCE, frozenset({SERVICE_TYPE}), keys)


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verified token says. `expire_time` is in seconds since the epoch."""

    kind: TokenKind
    tenant_id: str
    user_id: str
    roles: tuple[str, ...]
    scopes: frozenset[str]
    locale: str
    expire_time: int
    run: RunClaims | None = None


class _Unverified(Exception):
    """A check failed; which one is for the log alone."""


class _Registry(JWSRegistry):
    # RFC 9864 renamed EdDSA; issuers still write the old name, of which joserfc warns at every call.
    algorithms = {**JWSRegistry.algorithms, "EdDSA": JWSRegistry.algorithms["Ed25519"]}  # noqa: RUF012


@dataclass(frozen=True, slots=True)
class _Remembered:
    verified: Verified
    expires: float
    keys: KeySource
    kid: str


class Verifier:
    """Verifies tokens against a list of trusts and remembers them until they expire or their key is gone."""

    def __init__(
        self, trusts: Iterable[Trust], *, capacity: int = 10_000, clock: Callable[[], float] = time.time
    ) -> None:
        self._trusts = tuple(trusts)
        self._capacity = capacity
        self._clock = clock
        self._remembered: OrderedDict[bytes, _Remembered] = OrderedDict()

    async def verify(self, token: str) -> Verified:
        """What the token says; Refused UNAUTHENTICATED when any check fails, without saying which."""
        try:
            return await self._verify(token)
        except _Unverified as failed:
            _log.info("token refused", check=str(failed))
            raise Refused(error_reason_pb2.ERROR_REASON_UNAUTHENTICATED) from None

    async def _verify(self, token: str) -> Verified:
        if len(token) > MAX_TOKEN_BYTES or not token.isascii():
            raise _Unverified("size")
        digest = hashlib.sha256(token.encode()).digest()
        known = self._remembered.get(digest)
        if known is not None:
            if self._clock() < known.expires and await known.keys.find(known.kid) is not None:
                return known.verified
            self._remembered.pop(digest, None)
        fresh = await self._check(token)
        self._remembered[digest] = fresh
        while len(self._remembered) > self._capacity:
            self._remembered.popitem(last=False)
        return fresh.verified

    async def _check(self, token: str) -> _Remembered:
        try:
            signed = jws.extract_compact(token.encode(), registry=_Registry(strict_check_header=False))
            claims = json_text.parse((signed.payload or b"").decode())
        except (JoseError, ValueError, TypeError, KeyError, AttributeError):
            raise _Unverified("form") from None
        if not isinstance(claims, dict):
            raise _Unverified("form")
        trust = self._trust(signed, claims)
        kid = await _check_signature(signed, trust)
        expires = self._check_times(claims)
        verified = Verified(
            kind=trust.kind,
            tenant_id=_principal(claims, "tenant_id"),
            user_id=_principal(claims, "sub"),
            roles=_roles(claims.get("roles")),
            scopes=_scopes(claims.get("scope")),
            locale=_locale(claims.get("locale")),
            expire_time=int(expires),
            run=_run(claims) if trust.kind is TokenKind.RUN else None,
        )
        return _Remembered(verified, expires, trust.keys, kid)

    def _trust(self, signed: CompactSignature, claims: dict[str, JsonValue]) -> Trust:
        kind = signed.headers().get("typ", "")
        if not isinstance(kind, str):
            raise _Unverified("typ")
        kind = kind.lower().removeprefix("application/")
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        for trust in self._trusts:
            if claims.get("iss") == trust.issuer and trust.audience in audiences and kind in trust.types:
                return trust
        raise _Unverified("iss, aud or typ")

    def _check_times(self, claims: dict[str, JsonValue]) -> float:
        now = self._clock()
        expires = _seconds(claims, "exp")
        if expires is None or not now < expires <= MAX_EXPIRY:
            raise _Unverified("exp")
        for name in ("nbf", "iat"):
            moment = _seconds(claims, name)
            if moment is not None and moment > now + SKEW_SECONDS:
                raise _Unverified(name)
        return expires


async def _check_signature(signed: CompactSignature, trust: Trust) -> str:
    header = signed.headers()
    alg, kid = header.get("alg"), header.get("kid")
    if not isinstance(alg, str) or alg not in trust.algorithms:
        raise _Unverified("alg")
    key = await trust.keys.find(kid) if isinstance(kid, str) else None
    if not isinstance(kid, str) or key is None:
        raise _Unverified("kid")
    try:
        registry = _Registry(algorithms=[alg], strict_check_header=False)
        valid = jws.validate_compact(signed, key, registry=registry)
    except (JoseError, ValueError, TypeError):
        valid = False
    if not valid:
        raise _Unverified("signature")
    return kid


def _seconds(claims: dict[str, JsonValue], name: str) -> float | None:
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > MAX_EXPIRY:
        raise _Unverified(name)
    if not math.isfinite(value):
        raise _Unverified(name)
    return float(value)


def _principal(claims: dict[str, JsonValue], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not _PRINCIPAL.fullmatch(value):
        raise _Unverified(name)
    return value


def _roles(value: JsonValue) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _Unverified("roles")
    roles = [role for role in value if isinstance(role, str) and _PRINCIPAL.fullmatch(role)]
    if len(roles) != len(value):
        raise _Unverified("roles")
    return tuple(dict.fromkeys(roles))


def _scopes(value: JsonValue) -> frozenset[str]:
    if value is None:
        return frozenset()
    if not isinstance(value, str):
        raise _Unverified("scope")
    return frozenset(value.split())


def _locale(value: JsonValue) -> str:
    return value if isinstance(value, str) and _LOCALE.fullmatch(value) else ""


def _run(claims: dict[str, JsonValue]) -> RunClaims:
    attempt = claims.get("attempt")
    if isinstance(attempt, bool) or not isinstance(attempt, int) or attempt < 1:
        raise _Unverified("attempt")
    return RunClaims(_uuid(claims.get("session_id")), _uuid(claims.get("run_id")), attempt)


def _uuid(value: JsonValue) -> str:
    try:
        if isinstance(value, str) and str(uuid.UUID(value)) == value:
            return value
    except ValueError:
        pass
    raise _Unverified("run claims")
