"""Where the keys that verify tokens come from: a JWKS, kept fresh without being hammered (SPEC 1.4)."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import cast

import httpx2
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import DictKey, ECKey, Key, OKPKey, RSAKey, import_key

from turnkeeper.wire import json_text
from turnkeeper.wire.serving import ServingError

MAX_JWKS_BYTES = 1024 * 1024

_log = structlog.get_logger("turnkeeper.keys")

Fetch = Callable[[], Awaitable[str]]


class KeySource:
    """The public keys of one issuer by `kid`.

    An unknown kid makes it read again, at most every `interval` seconds, so that a stranger's tokens cannot turn it
    against the issuer; keys older than `max_age` seconds are read again too, so that a withdrawn key stops verifying.
    A reading takes at most `timeout` seconds; one that fails leaves the keys as they were, and the next may follow
    after `retry` seconds.
    """

    def __init__(
        self,
        fetch: Fetch,
        *,
        interval: float = 5.0,
        max_age: float = 300.0,
        retry: float = 1.0,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._interval = interval
        self._max_age = max_age
        self._retry = retry
        self._timeout = timeout
        self._clock = clock
        self._keys: Mapping[str, Key] = {}
        self._read_at = self._not_before = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    def file(cls, path: Path) -> "KeySource":
        """A JWKS in a file; replacing the file rotates the keys."""

        async def fetch() -> str:
            return await asyncio.to_thread(path.read_text, encoding="utf-8")

        return cls(fetch)

    @classmethod
    def url(cls, url: str) -> "KeySource":
        """A JWKS that the issuer serves over HTTP."""

        async def fetch() -> str:
            async with httpx2.AsyncClient(follow_redirects=False) as client, client.stream("GET", url) as response:
                response.raise_for_status()
                body = b""
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_JWKS_BYTES:
                        raise ValueError("the JWKS is too large")
                return body.decode()

        return cls(fetch)

    @classmethod
    def fixed(cls, jwks: str) -> "KeySource":
        """A JWKS, given as JSON text, that never changes."""

        async def fetch() -> str:
            return jwks

        return cls(fetch, interval=float("inf"), max_age=float("inf"))

    @classmethod
    def located(cls, location: str) -> "KeySource":
        """A JWKS at an https URL or, for anything without a scheme, in a file.

        Raises ServingError for another scheme, and for a file that is not there or has no JWKS: better at the start
        than a service that refuses every caller.
        """
        scheme, separator, rest = location.partition("://")
        if separator:
            if scheme.lower() != "https" or not rest.strip("/"):
                raise ServingError("the user_jwks must be a file or an https URL")
            return cls.url(location)
        path = Path(location)
        try:
            parse_jwks(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ServingError(f"cannot read the user_jwks {location}: {error.strerror}") from error
        except ValueError as error:
            raise ServingError(f"the user_jwks {location} is not a JWKS") from error
        return cls.file(path)

    async def find(self, kid: str) -> Key | None:
        """The key of that id, or None when the issuer does not have it."""
        known = kid in self._keys
        if not known or self._clock() - self._read_at > self._max_age:
            reading = self._start_reading()
            if reading is not None and not known:
                # Shielded: a caller that hangs up must not spoil the reading for those who wait with it.
                await asyncio.shield(reading)
        return self._keys.get(kid)

    def _start_reading(self) -> "asyncio.Task[None] | None":
        if self._reading is None and self._clock() >= self._not_before:
            self._reading = asyncio.create_task(self._read())
        return self._reading

    async def _read(self) -> None:
        pause = self._interval
        try:
            async with asyncio.timeout(self._timeout):
                self._keys = parse_jwks(await self._fetch())
            self._read_at = self._clock()
        except Exception as error:
            # An issuer that is down must not log its callers out, so the last good keys stay.
            _log.warning("verification keys not read", error=type(error).__name__)
            pause = min(pause, self._retry)
        finally:
            self._not_before = self._clock() + pause
            self._reading = None


def parse_jwks(text: str) -> dict[str, Key]:
    """The asymmetric signature keys of a JWKS by `kid`; keys of other kinds are passed over, as RFC 7517 asks."""
    read = json_text.parse(text)
    listed = read.get("keys") if isinstance(read, dict) else None
    if not isinstance(listed, list):
        raise ValueError("not a JWKS")
    keys: dict[str, Key] = {}
    for each in listed:
        if not isinstance(each, dict) or each.get("use", "sig") != "sig":
            continue
        try:
            # RFC 9864 renamed EdDSA, and joserfc holds a key to the name that it bears; issuers publish the old one.
            renamed = {**each, "alg": "Ed25519"} if each.get("alg") == "EdDSA" else each
            key = import_key(cast(DictKey, renamed))
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        if key.kid and isinstance(key, ECKey | OKPKey | RSAKey):
            keys.setdefault(key.kid, key)
    return keys
