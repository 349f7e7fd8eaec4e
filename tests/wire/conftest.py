"""A real server on loopback whose servicers a test brings, and the issuers that it trusts."""

import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf.descriptor import ServiceDescriptor
from hypothesis import settings
from joserfc.jwk import KeySet, OKPKey
from turnkeeper.v1 import (
    admin_service_pb2,
    agent_service_pb2,
    identity_service_pb2,
    run_service_pb2,
    runner_service_pb2,
    secret_service_pb2,
    session_service_pb2,
    turn_service_pb2,
)
from turnkeeper.wire import tokens
from turnkeeper.wire.interceptors import CallInterceptor
from turnkeeper.wire.keys import KeySource
from turnkeeper.wire.serving import Listen, Server, serve
from turnkeeper.wire.tokens import Trust, Verifier

from tests.fixtures.issuer import Issuer

# How long an example takes says nothing on a shared machine.
settings.register_profile("wire", deadline=None)
settings.load_profile("wire")

SERVICES: tuple[ServiceDescriptor, ...] = tuple(
    service
    for module in (
        session_service_pb2,
        run_service_pb2,
        agent_service_pb2,
        turn_service_pb2,
        secret_service_pb2,
        identity_service_pb2,
        admin_service_pb2,
        runner_service_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
)

SESSION = session_service_pb2.DESCRIPTOR.services_by_name["SessionService"]
RUN = run_service_pb2.DESCRIPTOR.services_by_name["RunService"]
IDENTITY = identity_service_pb2.DESCRIPTOR.services_by_name["IdentityService"]
TURN = turn_service_pb2.DESCRIPTOR.services_by_name["TurnService"]
RUNNER = runner_service_pb2.DESCRIPTOR.services_by_name["RunnerService"]


class SessionKeys:
    """Signs run and service tokens as the session service does."""

    def __init__(self) -> None:
        self.key = OKPKey.generate_key("Ed25519", {"kid": "session-1", "use": "sig", "alg": "Ed25519"})
        self.jwks = json.dumps(KeySet([self.key]).as_dict(private=False))

    def run_claims(self, **overrides: Any) -> dict[str, Any]:
        return {
            "iss": tokens.SESSION_ISSUER,
            "aud": tokens.RUN_AUDIENCE,
            "sub": "ada",
            "tenant_id": "acme",
            "roles": [],
            "scope": "runs:write",
            "exp": int(time.time()) + 60,
            "session_id": str(uuid.UUID(int=1)),
            "run_id": str(uuid.UUID(int=2)),
            "attempt": 1,
            **overrides,
        }

    def service_claims(self, **overrides: Any) -> dict[str, Any]:
        claims = self.run_claims(aud=tokens.SERVICE_AUDIENCE, sub="session-service", scope="", **overrides)
        return {name: value for name, value in claims.items() if name not in ("session_id", "run_id", "attempt")}


@dataclass
class Wire:
    """What a test of the wire needs: issuers, and a way to serve."""

    issuer: Issuer
    session: SessionKeys
    verifier: Verifier

    def run_token(self, **overrides: Any) -> str:
        claims = self.session.run_claims(**overrides)
        return self.issuer.sign(claims, key=self.session.key, kid="session-1", typ=tokens.RUN_TYPE)

    def service_token(self, **overrides: Any) -> str:
        claims = self.session.service_claims(**overrides)
        return self.issuer.sign(claims, key=self.session.key, kid="session-1", typ=tokens.SERVICE_TYPE)

    @asynccontextmanager
    async def serving(self, servicers: Mapping[ServiceDescriptor, object], grace: float = 1.0) -> AsyncIterator[Server]:
        listen = Listen.at("127.0.0.1:0")
        async with serve(listen, servicers, CallInterceptor(self.verifier), grace) as server:
            yield server


@pytest.fixture
def trusts(issuer: Issuer) -> tuple[list[Trust], SessionKeys]:
    session = SessionKeys()
    return [
        tokens.user_trust(issuer.name, issuer.audience, KeySource.file(issuer.jwks_path)),
        tokens.run_trust(KeySource.fixed(session.jwks)),
        tokens.service_trust(KeySource.fixed(session.jwks)),
    ], session


@pytest.fixture
def wire(issuer: Issuer, trusts: tuple[list[Trust], SessionKeys]) -> Wire:
    return Wire(issuer, trusts[1], Verifier(trusts[0]))


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)
