"""Key sources: fresh, bounded, and no lever against an issuer (SPEC 1.4)."""

import asyncio
import json
from pathlib import Path

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey
from turnkeeper.wire.keys import KeySource, parse_jwks
from turnkeeper.wire.serving import ServingError


class Far:
    """An issuer whose JWKS a test changes, and that counts who asks."""

    def __init__(self, *kids: str) -> None:
        self.kids = kids
        self.asked = 0
        self.now = 100.0
        self.down = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def fetch(self) -> str:
        self.asked += 1
        await self.gate.wait()
        if self.down:
            raise OSError("no route")
        return _jwks(*self.kids)

    def source(self, **options: float) -> KeySource:
        return KeySource(self.fetch, clock=lambda: self.now, **options)


def _jwks(*kids: str) -> str:
    keys = [OKPKey.generate_key("Ed25519", {"kid": kid}).as_dict(private=False) for kid in kids]
    return json.dumps({"keys": keys})


async def test_an_unknown_key_asks_again_but_not_at_once() -> None:
    far = Far("a")
    source = far.source(interval=5)
    assert await source.find("a") is not None
    far.kids = ("a", "b")
    for _ in range(50):
        assert await source.find("b") is None
    assert far.asked == 1
    far.now += 5
    assert await source.find("b") is not None
    assert far.asked == 2


async def test_a_withdrawn_key_stops_verifying() -> None:
    far = Far("a", "b")
    source = far.source(max_age=300)
    assert await source.find("a") is not None
    far.kids = ("b",)
    far.now += 301
    assert await source.find("a") is not None  # answered from what is known, while it is read again
    await asyncio.sleep(0)  # the reading waits for nothing
    assert await source.find("a") is None
    assert far.asked == 2


async def test_an_issuer_that_is_down_logs_nobody_out() -> None:
    far = Far("a")
    source = far.source(interval=5, retry=1)
    assert await source.find("a") is not None
    far.down = True
    far.now += 1000
    assert await source.find("b") is None
    assert await source.find("a") is not None
    far.down, far.kids = False, ("a", "b")
    far.now += 1
    assert await source.find("b") is not None


async def test_many_callers_share_one_reading_and_one_that_leaves_spoils_nothing() -> None:
    far = Far("a")
    far.gate.clear()
    source = far.source()
    leaver, *others = [asyncio.create_task(source.find("a")) for _ in range(10)]
    await asyncio.sleep(0)
    leaver.cancel()
    await asyncio.wait({leaver})
    far.gate.set()
    assert all(await asyncio.gather(*others))
    assert (leaver.cancelled(), far.asked) == (True, 1)


async def test_a_reading_that_hangs_is_given_up() -> None:
    far = Far("a")
    far.gate.clear()
    assert await far.source(timeout=0.05).find("a") is None


async def test_a_file_rotates(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(_jwks("b"))
    assert await KeySource.located(str(path)).find("a") is None
    path.write_text(_jwks("a"))
    assert await KeySource.located(str(path)).find("a") is not None


@pytest.mark.parametrize(
    "location", ["http://issuer.example/jwks", "HTTP://x", "file:///x", "https://", "gone.json", "."]
)
def test_what_can_never_verify_anybody_is_refused_at_the_start(location: str) -> None:
    with pytest.raises(ServingError, match="user_jwks"):
        KeySource.located(location)


def test_a_file_without_a_jwks_is_refused_at_the_start(tmp_path: Path) -> None:
    for content in ("", "{}", "[]", "s3cret"):
        (tmp_path / "jwks.json").write_text(content)
        with pytest.raises(ServingError, match="is not a JWKS"):
            KeySource.located(str(tmp_path / "jwks.json"))


def test_an_https_url_is_read_when_it_is_needed() -> None:
    assert KeySource.located("https://issuer.example/jwks") is not None


async def test_a_url_is_read_over_http() -> None:
    body = _jwks("a").encode()
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await KeySource.url(f"http://127.0.0.1:{port}/jwks").find("a") is not None
    assert requests[0].startswith(b"GET /jwks ")


@pytest.mark.spec("1.4")
def test_only_asymmetric_signature_keys_are_taken() -> None:
    keys = [
        OKPKey.generate_key("Ed25519", {"kid": "signs"}).as_dict(private=False),
        ECKey.generate_key("P-256", {"kid": "encrypts", "use": "enc"}).as_dict(private=False),
        OctKey.generate_key(256, {"kid": "symmetric"}).as_dict(),
        {"kty": "AKP", "kid": "of the future"},
        {"kty": "OKP", "crv": "Ed25519", "kid": "broken"},
        {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
        "not even an object",
    ]
    assert list(parse_jwks(json.dumps({"keys": keys}))) == ["signs"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": {}}', "null"])
def test_what_is_no_jwks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"JWKS|JSON"):
        parse_jwks(text)
