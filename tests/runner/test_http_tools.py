"""HTTP tools against a raw-socket server that logs what reaches it (SPEC 7.10; CASES 12, 29)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnkeeper.v1 import run_pb2
from turnkeeper.wire.configs import Effect, HttpRequest, ToolConfig

from runner_service.tools.address import AddressRefused, fill
from runner_service.tools.headers import ToolHeaders
from runner_service.tools.http import HttpTools
from runner_service.tools.model import ToolResult
from runner_service.tools.outgoing import Outgoing
from tests.far.tools import ToolReply, ToolServer, json_reply, text_reply

SUCCEEDED = run_pb2.TOOL_CALL_STATE_SUCCEEDED
FAILED = run_pb2.TOOL_CALL_STATE_FAILED
UNKNOWN = run_pb2.TOOL_CALL_STATE_UNKNOWN

RESULT_BYTES = 2048


@pytest.fixture
async def http(tools: ToolServer) -> AsyncIterator[HttpTools]:
    made = HttpTools((tools.origin,), RESULT_BYTES, ToolHeaders({}, ()))
    yield made
    await made.close()


async def call(
    http: HttpTools, url: str, arguments: dict[str, Any] | None = None, *, method: str = "POST", **more: Any
) -> ToolResult:
    template = HttpRequest(method, url)
    outgoing = Outgoing("1.1.0", more.pop("seconds", 10.0), more.pop("key", "k-1"), more.pop("identity", None))
    return await http.call(ToolConfig(name="t", http=template, **more), template, arguments or {}, outgoing)


@pytest.mark.spec("7.10")
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_the_body_is_json_and_numbers_stay_exact(http: HttpTools, tools: ToolServer, method: str) -> None:
    arguments = {"n": 9007199254740993, "ten": 10, "x": 0.5, "text": "é😀", "nested": {"a": [True, None]}}
    result = await call(http, tools.url("/do"), arguments, method=method)
    request = await tools.request()
    assert (request.method, request.path, request.headers["content-type"]) == (method, "/do", "application/json")
    assert request.headers["idempotency-key"] == "k-1"
    assert b"9007199254740993" in request.body
    assert request.json() == arguments
    assert (result.state, json.loads(result.text)) == (SUCCEEDED, arguments)


@pytest.mark.spec("7.10")
async def test_a_get_has_its_arguments_in_the_query(http: HttpTools, tools: ToolServer) -> None:
    await call(http, tools.url("/find?v=1"), {"q": "a&b=c", "n": 3, "on": True}, method="GET", effect=Effect.READ)
    request = await tools.request()
    assert (request.method, request.body) == ("GET", b"")
    assert request.query == "v=1&q=a%26b%3Dc&n=3&on=true"


async def test_a_call_without_side_effects_has_no_key(http: HttpTools, tools: ToolServer) -> None:
    await call(http, tools.url("/find"), key="")
    assert "idempotency-key" not in (await tools.request()).headers


@pytest.mark.spec("7.10")
@pytest.mark.parametrize(
    ("value", "segment"),
    [
        ("plain", "plain"),
        ("a?x=1", "a%3Fx%3D1"),
        ("a#b", "a%23b"),
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        ("@evil.example", "%40evil.example"),
        ("é😀", "%C3%A9%F0%9F%98%80"),
        (7, "7"),
        (9007199254740993, "9007199254740993"),
        (True, "true"),
    ],
)
async def test_a_path_parameter_is_one_encoded_segment(
    http: HttpTools, tools: ToolServer, value: Any, segment: str
) -> None:
    await call(http, tools.url("/items/{id}/end"), {"id": value, "rest": 1})
    request = await tools.request()
    assert request.target == f"/items/{segment}/end"
    assert request.json() == {"rest": 1}  # taken out of the body


@pytest.mark.spec("7.10")
@pytest.mark.parametrize(
    "value",
    [
        "..",
        ".",
        "../../admin",
        "%2e%2e",
        "%252e%252e%252fadmin",
        "a/../b",
        "a\\b",
        "%5c..",
        "a b",
        "a\nb",
        "a\x00b",
        "\u00a0",
        "\u2028",
        "",
        None,
        [1],
        {"a": 1},
        "%25252525252e",
    ],
)
async def test_a_path_parameter_that_could_lead_elsewhere_is_refused(
    http: HttpTools, tools: ToolServer, value: Any
) -> None:
    result = await call(http, tools.url("/items/{id}"), {"id": value})
    assert result.state == FAILED
    assert result.text.startswith("The call was refused")
    assert len(tools.requests) == 0


@given(st.text() | st.integers() | st.booleans() | st.none() | st.floats())
def test_no_value_ever_leaves_its_segment(value: Any) -> None:
    origin = "http://tools.example:80"
    try:
        url = fill("http://tools.example/items/{id}/end", {"id": value}, {origin})
    except AddressRefused:
        return
    prefix, suffix = "http://tools.example/items/", "/end"
    assert url.startswith(prefix)
    assert url.endswith(suffix)
    segment = url[len(prefix) : -len(suffix)]
    assert segment
    assert not set(segment) & set("/?#\\ ")
    assert segment.strip(".")


@pytest.mark.spec("7.10")
@pytest.mark.parametrize(
    "url",
    [
        "http://other.example/x",
        "http://127.0.0.1:1/x",
        "https://127.0.0.1/x",
        "ftp://127.0.0.1/x",
        "http://user:secret@127.0.0.1/x",
        "http://{host}/x",
        "/x",
        "http://[::1/x",
    ],
)
async def test_an_origin_that_is_not_allowed_gets_nothing(http: HttpTools, tools: ToolServer, url: str) -> None:
    result = await call(http, url, {"host": "127.0.0.1"})
    assert result.state == FAILED
    assert len(tools.requests) == 0


@pytest.mark.spec("7.10")
async def test_a_server_that_is_there_but_not_allowed_gets_nothing(http: HttpTools) -> None:
    async with ToolServer() as other:
        assert (await call(http, other.url("/x"))).state == FAILED
        assert len(other.requests) == 0


@pytest.mark.spec("7.10")
@pytest.mark.parametrize("path", ["/a/../b", "/a/%2e%2e/b", "/a?x={id}", "/a#{id}"])
async def test_a_template_that_leaves_its_path_is_refused(http: HttpTools, tools: ToolServer, path: str) -> None:
    result = await call(http, tools.url(path), {"id": "1"})
    assert result.state == FAILED
    assert len(tools.requests) == 0


@pytest.mark.spec("7.10")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(http: HttpTools, tools: ToolServer, status: int) -> None:
    async with ToolServer() as elsewhere:
        tools.queue("/x", ToolReply(b"", status, {"Location": elsewhere.url("/stolen")}))
        result = await call(http, tools.url("/x"), {"a": 1})
        assert (result.state, len(elsewhere.requests), len(tools.requests)) == (FAILED, 0, 1)


async def test_an_error_status_is_told_with_its_text(http: HttpTools, tools: ToolServer) -> None:
    tools.queue("/x", text_reply("no such thing", status=404))
    result = await call(http, tools.url("/x"))
    assert (result.state, result.text) == (FAILED, "The tool answered with status 404.\nno such thing")


@pytest.mark.spec("7.10")
async def test_a_large_answer_is_cut_on_a_code_point_with_its_size(http: HttpTools, tools: ToolServer) -> None:
    tools.queue("/x", text_reply("x" + "😀" * 1_500_000))
    result = await call(http, tools.url("/x"))
    assert result.state == SUCCEEDED
    assert len(result.text.encode()) < RESULT_BYTES + 32
    assert result.text.endswith("[cut] [6000001 bytes]")
    assert result.text.startswith("x😀😀")
    assert "\ufffd" not in result.text


async def test_an_answer_without_end_is_not_read_for_ever(http: HttpTools, tools: ToolServer) -> None:
    tools.queue("/x", text_reply("x" * (20 * 2**20)))
    result = await call(http, tools.url("/x"))
    assert result.text.startswith("xxx")
    await tools.disconnected()


@pytest.mark.spec("11.1")
async def test_what_cannot_be_stored_is_repaired_visibly(http: HttpTools, tools: ToolServer) -> None:
    tools.queue("/x", ToolReply(b"a\x00b\xed\xa0\xbdc\xff", headers={"Content-Type": "text/plain"}))
    result = await call(http, tools.url("/x"))
    assert result.state == SUCCEEDED
    assert "\x00" not in result.text
    assert result.text.startswith("a\ufffdb\ufffd")
    result.text.encode()


@pytest.mark.parametrize(
    "charset", ["latin-1", "ISO-8859-1", "windows-1252", "no-such-charset", "rot13", "idna", "utf-7", "iso-8859-12"]
)
async def test_a_charset_is_believed_only_if_it_is_one(http: HttpTools, tools: ToolServer, charset: str) -> None:
    tools.queue("/x", ToolReply(b"caf\xe9", headers={"Content-Type": f"text/plain; charset={charset}"}))
    result = await call(http, tools.url("/x"))
    believed = charset in {"latin-1", "ISO-8859-1", "windows-1252"}
    assert result.text == ("café" if believed else "caf\ufffd")


@pytest.mark.spec("7.10")
@pytest.mark.parametrize("charset", ["punycode", "unicode_escape", "raw_unicode_escape", "utf-7"])
async def test_no_charset_holds_up_the_process(http: HttpTools, tools: ToolServer, charset: str) -> None:
    content = b"a-" + b"99" * 50_000  # in punycode: time by the square, and another text
    tools.queue("/x", ToolReply(content + b"\\u0041+AEE-", headers={"Content-Type": f"text/plain; charset={charset}"}))
    before = asyncio.get_running_loop().time()
    result = await call(http, tools.url("/x"))
    assert asyncio.get_running_loop().time() - before < 2
    assert result.text.startswith("a-9999")
    tools.queue("/y", ToolReply(b"\\u0041+AEE-", headers={"Content-Type": f"text/plain; charset={charset}"}))
    assert (await call(http, tools.url("/y"))).text == "\\u0041+AEE-"


@pytest.mark.parametrize("charset", ["utf-16", "utf-16le", "utf-32", "utf-32be"])
async def test_a_large_answer_in_a_wide_charset_fills_its_limit(
    http: HttpTools, tools: ToolServer, charset: str
) -> None:
    content = ("x" * 200_000).encode(charset)
    tools.queue("/x", ToolReply(content, headers={"Content-Type": f"text/plain; charset={charset}"}))
    result = await call(http, tools.url("/x"))
    assert result.text.endswith(f"[cut] [{len(content)} bytes]")
    assert RESULT_BYTES - 16 < result.text.count("x") <= RESULT_BYTES


async def test_a_compressed_answer_is_not_unpacked(http: HttpTools, tools: ToolServer) -> None:
    tools.queue("/x", ToolReply(b"\x1f\x8b", headers={"Content-Encoding": "gzip"}))
    assert (await call(http, tools.url("/x"))).state == FAILED
    assert (await tools.request()).headers["accept-encoding"] == "identity"


@pytest.mark.spec("3.7")
@pytest.mark.parametrize(("effect", "state"), [(Effect.READ, FAILED), (Effect.WRITE, UNKNOWN)])
async def test_a_tool_that_takes_too_long(
    http: HttpTools, tools: ToolServer, effect: Effect, state: run_pb2.ToolCallState.ValueType
) -> None:
    tools.hold("/x")
    async with asyncio.timeout(2):
        result = await call(http, tools.url("/x"), effect=effect, seconds=0.2)
    assert (result.state, result.text) == (state, "The tool did not answer within 0.2 s.")
    await tools.disconnected(within=1.0)


@pytest.mark.parametrize(("effect", "state"), [(Effect.READ, FAILED), (Effect.WRITE, UNKNOWN)])
async def test_a_connection_that_breaks(
    http: HttpTools, tools: ToolServer, effect: Effect, state: run_pb2.ToolCallState.ValueType
) -> None:
    tools.queue("/x", ToolReply(hang_up=True))
    assert (await call(http, tools.url("/x"), effect=effect)).state == state


async def test_a_tool_that_is_not_there() -> None:
    async with ToolServer() as gone:
        url, origin = gone.url("/x"), gone.origin
    http = HttpTools((origin,), RESULT_BYTES, ToolHeaders({}, ()))
    result = await call(http, url)
    await http.close()
    assert (result.state, result.text) == (FAILED, "The tool could not be reached.")


@pytest.mark.spec("4.4")
async def test_a_cancelled_call_closes_its_socket(http: HttpTools, tools: ToolServer) -> None:
    tools.hold("/x")
    calling = asyncio.create_task(call(http, tools.url("/x")))
    await tools.request()
    calling.cancel()
    await tools.disconnected(within=1.0)
    await asyncio.wait({calling})
    assert calling.cancelled()


async def test_one_callers_cookies_never_reach_the_next(http: HttpTools, tools: ToolServer) -> None:
    tools.queue("/x", ToolReply(b"{}", headers={"Set-Cookie": "who=ada; Path=/"}))
    await call(http, tools.url("/x"))
    await call(http, tools.url("/x"))
    assert "cookie" not in tools.requests[1].headers


async def test_the_environment_sends_no_call_elsewhere(tools: ToolServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ToolServer() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.origin)
        http = HttpTools((tools.origin,), RESULT_BYTES, ToolHeaders({}, ()))
        await call(http, tools.url("/x"))
        await http.close()
        assert (len(tools.requests), len(proxy.requests)) == (1, 0)


@pytest.mark.spec("1.6")
async def test_identity_in_arguments_is_data(http: HttpTools, tools: ToolServer) -> None:
    tools.queue("/x", json_reply({}))
    await call(http, tools.url("/x"), {"tenant_id": "evil", "user_id": "root"})
    request = await tools.request()
    assert request.json() == {"tenant_id": "evil", "user_id": "root"}
    assert "authorization" not in request.headers
