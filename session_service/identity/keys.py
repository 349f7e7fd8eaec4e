"""The keys that this service signs with, shared by all its replicas through the database (SPEC 1.2)."""

import base64
import json
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from joserfc import jwt
from joserfc.jwk import KeySet, OKPKey
from sqlalchemy import Connection
from turnkeeper.wire import tokens

from session_service.identity import store
from session_service.storage.write import Storage

_ALGORITHM = "Ed25519"
_TOKEN, _PAGE = "TOKEN", "PAGE"
_SERVICE_SUBJECT = "turnkeeper-session-service"
_SERVICE_TOKEN_SECONDS = 60
_TOOL_TOKEN_SECONDS = 60


class KeyRing:
    """Signs tokens with the newest key and seals with the page key; what it holds is never shown or logged."""

    def __init__(self, signing: Sequence[OKPKey], page_key: bytes) -> None:
        self._signing, self._page_key = signing, page_key

    @property
    def page_key(self) -> bytes:
        """The secret that seals page tokens."""
        return self._page_key

    def run_token(
        self,
        *,
        tenant_id: str,
        user_id: str,
        roles: Sequence[str],
        scopes: Collection[str],
        session_id: str,
        run_id: str,
        attempt: int,
        expire_time: int,
    ) -> str:
        """The token of one attempt, with the roles and scopes of the run's start; expires at these epoch seconds."""
        claims = {
            "aud": tokens.RUN_AUDIENCE,
            "sub": user_id,
            "tenant_id": tenant_id,
            "roles": list(roles),
            "scope": " ".join(sorted(scopes)),
            "session_id": session_id,
            "run_id": run_id,
            "attempt": attempt,
        }
        return self._sign(tokens.RUN_TYPE, claims, expire_time)

    def service_token(self, tenant_id: str) -> str:
        """A token with which this service asks a runner about one tenant's sessions; good for a minute."""
        claims = {"aud": tokens.SERVICE_AUDIENCE, "sub": _SERVICE_SUBJECT, "tenant_id": tenant_id}
        return self._sign(tokens.SERVICE_TYPE, claims, int(time.time()) + _SERVICE_TOKEN_SECONDS)

    def tool_token(self, *, tool_name: str, tenant_id: str, user_id: str, roles: Sequence[str], run_id: str) -> str:
        """The token that tells one tool for whom a call of a run is made; good for a minute."""
        claims = {"aud": tool_name, "sub": user_id, "tenant_id": tenant_id, "roles": list(roles), "run_id": run_id}
        return self._sign(tokens.TOOL_TYPE, claims, int(time.time()) + _TOOL_TOKEN_SECONDS)

    def jwks(self) -> str:
        """The public halves of all signing keys, as the JSON text of a JWKS."""
        return json.dumps(KeySet(list(self._signing)).as_dict(private=False))

    def _sign(self, kind: str, claims: dict[str, Any], expire_time: int) -> str:
        key = self._signing[0]
        header = {"alg": _ALGORITHM, "kid": key.kid, "typ": kind}
        stamped = {"iss": tokens.SESSION_ISSUER, "iat": int(time.time()), "exp": expire_time, **claims}
        return jwt.encode(header, stamped, key, algorithms=[_ALGORITHM])


def new_signing_key() -> OKPKey:
    """An Ed25519 key that is named by its thumbprint."""
    key = OKPKey.generate_key("Ed25519", {"use": "sig", "alg": _ALGORITHM}, private=True)
    key.ensure_kid()
    return key


async def load_keys(storage: Storage) -> KeyRing:
    """The keys in the database; the first replica that ever starts makes them."""
    found: KeyRing | None = await storage.read("", _found)
    if found is not None:
        return found
    return await storage.write("", _made)


def _found(connection: Connection) -> KeyRing | None:
    signing, page = store.read_keys(connection, _TOKEN), store.read_keys(connection, _PAGE)
    if not signing or not page:
        return None
    page_key = json.loads(page[0])["k"]
    return KeyRing(
        [OKPKey.import_key(json.loads(jwk)) for jwk in signing],
        base64.urlsafe_b64decode(page_key + "=" * (-len(page_key) % 4)),
    )


def _made(connection: Connection) -> KeyRing:
    store.lock_keys(connection)
    makers: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {_TOKEN: _new_token_jwk, _PAGE: _new_page_jwk}
    for purpose, make in makers.items():
        if not store.read_keys(connection, purpose):  # another replica may have been first
            kid, jwk = make()
            store.insert_key(connection, kid, purpose, json.dumps(jwk))
    ring = _found(connection)
    if ring is None:
        raise RuntimeError("keys that were just made are not there")
    return ring


def _new_token_jwk() -> tuple[str, dict[str, Any]]:
    key = new_signing_key()
    return str(key.kid), dict(key.as_dict(private=True))


def _new_page_jwk() -> tuple[str, dict[str, Any]]:
    kid = secrets.token_hex(16)
    secret = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")
    return kid, {"kty": "oct", "k": secret, "kid": kid}
