"""A user token issuer for a laptop: one key in a file, made on first use. Production has the organisation's issuer."""

import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from joserfc import jwt
from joserfc.jwk import KeySet, OKPKey

from session_service.identity.keys import new_signing_key

_KEY_FILE = "dev-issuer.jwk"
_JWKS_FILE = "dev-issuer.jwks.json"


class DevIssuer:
    """Signs user tokens with the key in a directory; `jwks_path` has the public half, for both services."""

    def __init__(self, key: OKPKey, jwks_path: Path) -> None:
        self._key = key
        self.jwks_path = jwks_path

    @classmethod
    def open(cls, directory: Path) -> "DevIssuer":
        """The issuer of this directory, with a new key when it has none. Several processes may open it at once."""
        directory.mkdir(parents=True, exist_ok=True)
        key_path, jwks_path = directory / _KEY_FILE, directory / _JWKS_FILE
        if not key_path.exists():
            _write(key_path, json.dumps(new_signing_key().as_dict(private=True)), 0o600, os.link)
        key = OKPKey.import_key(json.loads(key_path.read_text()))
        public = json.dumps(KeySet([key]).as_dict(private=False))
        if not jwks_path.exists() or jwks_path.read_text() != public:
            _write(jwks_path, public, 0o644, os.replace)
        return cls(key, jwks_path)

    def token(
        self,
        *,
        issuer: str,
        audience: str,
        tenant_id: str,
        user_id: str,
        roles: Sequence[str],
        scopes: Collection[str],
        seconds: int,
    ) -> str:
        """A user token that is good for so many seconds from now."""
        now = int(time.time())
        claims = {
            "iss": issuer,
            "aud": audience,
            "sub": user_id,
            "tenant_id": tenant_id,
            "roles": list(roles),
            "scope": " ".join(sorted(scopes)),
            "iat": now,
            "exp": now + seconds,
        }
        header = {"alg": "Ed25519", "kid": self._key.kid, "typ": "JWT"}
        return jwt.encode(header, claims, self._key, algorithms=["Ed25519"])


def _write(path: Path, content: str, mode: int, place: Callable[[Path, Path], None]) -> None:
    """Writes the file whole or not at all; `place` links (the first writer wins) or replaces (the last one does)."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(content)
        with suppress(FileExistsError):  # another process won; its key is the one
            place(draft, path)
    finally:
        draft.unlink(missing_ok=True)
