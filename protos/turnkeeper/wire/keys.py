"""Where the keys that verify tokens come from: a JWKS, kept fresh without being hammered (SPEC 1.4)."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import httpx2
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey, import_key

from turnkeeper.wire import json_text

MAX_JWKS_BYTES = 1024 * 1024

_log = structlog.get_logger("turnkeeper.keys")

Fetch = Callable[[], Awaitable[str]]


class KeySource:
    """The public keys of one issuer by `kid`.

    An unknown kid makes it read again, at most every `interval` seconds, so that a stranger's tokens cannot turn it
    against the issuer; keys older than `max_age` seconds are read again too, so that a withdrawn key stops verifying.
    A reading takes at most `timeout` seconds, and one that fails leaves the keys as they were.
    """

    def __init__(
        self,
        fetch: Fetch,
        *,
        interval: float = 5.0,
        max_age: float = 300.0,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._interval = interval
        self._max_age = max_age
        self._timeout = timeout
        self._clock = clock
        self._keys: Mapping[str, Key] = {}
        self._tried = float("-inf")
        self._reading = asyncio.Lock()

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
        """A JWKS at an http(s) URL or, for anything else, in a file."""
        return cls.url(location) if location.startswith(("http://", "https://")) else cls.file(Path(location))

    async def find(self, kid: str) -> Key | None:
        """The key of that id, or None when the issuer does not have it."""
        if kid not in self._keys or self._clock() - self._tried > self._max_age:
            await self._read(kid)
        return self._keys.get(kid)

    async def _read(self, kid: str) -> None:
        if self._reading.locked() and kid in self._keys:
            return  # somebody is at it; the old key is good until they are done
        asked = self._clock()
        async with self._reading:
            if self._tried >= asked or self._clock() - self._tried < self._interval:
                return
            try:
                async with asyncio.timeout(self._timeout):
                    self._keys = parse_jwks(await self._fetch())
            except Exception as error:
                # An issuer that is down must not log its callers out, so the last good keys stay.
                _log.warning("verification keys not read", error=type(error).__name__)
            finally:
                self._tried = self._clock()


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
            key = import_key({name: value for name, value in each.items() if isinstance(value, str | list)})
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        if key.kid and isinstance(key, ECKey | OKPKey | RSAKey):
            keys.setdefault(key.kid, key)
    return keys
