"""Headers that the operator adds to tool calls: to their destination alone, and never seen (SPEC 7.10; CASES 29)."""

import json
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from turnkeeper.v1 import run_pb2
from turnkeeper.wire.configs import HttpRequest, ToolConfig
from turnkeeper.wire.context import Credential

from runner_service.app import runner_app
from runner_service.settings import Settings
from runner_service.tools.headers import HeaderRefused, ToolHeaders
from runner_service.tools.http import HttpTools
from runner_service.tools.model import ToolResult
from runner_service.tools.outgoing import Outgoing
from tests.far.http import Request
from tests.far.tools import ToolReply, ToolServer, text_reply

SECRET = "s3cret-of-the-operator"


def repeat_all(request: Request) -> ToolReply:
    return ToolReply(json.dumps([request.target, dict(request.headers)]).encode())


async def call(http: HttpTools, url: str, **more: Any) -> ToolResult:
    template = HttpRequest("POST", url)
    return await http.call(ToolConfig("t", template), template, {}, Outgoing("1.1.0", 10.0, **more))


@pytest.mark.spec("7.10")
async def test_they_go_to_their_origin_alone_and_do_not_come_back() -> None:
    async with ToolServer() as mine, ToolServer() as other:
        mine.respond = other.respond = repeat_all
        given = {mine.origin: {"Authorization": SecretStr(f"Bearer {SECRET}"), "X-Team": SecretStr("blue")}}
        http = HttpTools((mine.origin, other.origin), 4096, ToolHeaders(given, (mine.origin, other.origin)))
        mine.queue("/moved", ToolReply(b"", 302, {"Location": other.url("/x")}))
        results = [await call(http, url) for url in (mine.url("/x"), other.url("/x"), mine.url("/moved"))]
        marked = await call(
            http, mine.url("/x"), identity=Credential("token-of-the-caller"), idempotency_key="key-0001"
        )
        await http.close()
        first, _, last = mine.requests
        assert (first.headers["authorization"], first.headers["x-team"]) == (f"Bearer {SECRET}", "blue")
        assert [request.path for request in other.requests] == ["/x"]
        assert not {"authorization", "x-team"} & other.requests[0].headers.keys()
        # Who calls is told in place of the runner's own authorization.
        assert last.headers["authorization"] == "Bearer token-of-the-caller"
        for each in (*results, marked):
            assert SECRET not in each.text
            assert "token-of-the-caller" not in each.text
        assert '"x-team": "blue"' in results[0].text  # too short to be anybody's secret
        assert "key-0001" in marked.text


@pytest.mark.spec("7.10")
async def test_an_answer_that_is_cut_shows_no_part_of_them() -> None:
    async with ToolServer() as tools:
        given = {tools.origin: {"X-Key": SecretStr(SECRET)}}
        http = HttpTools((tools.origin,), 1024, ToolHeaders(given, (tools.origin,)))
        tools.queue("/x", ToolReply(("x" * 1000 + SECRET * 100).encode()))
        result = await call(http, tools.url("/x"))
        await http.close()
        assert result.state == run_pb2.TOOL_CALL_STATE_SUCCEEDED
        assert "s3cret" not in result.text


@pytest.mark.spec("7.10")
async def test_words_that_any_request_has_are_no_credentials() -> None:
    async with ToolServer() as tools:
        given = {tools.origin: {"X-Key": SecretStr(SECRET)}}
        http = HttpTools((tools.origin,), 1024, ToolHeaders(given, (tools.origin,)))
        result = await call(http, tools.url("/x"))
        sent = dict(tools.requests[0].headers)
        words = " ".join(value for name, value in sent.items() if name != "x-key")
        assert {"host", "accept", "accept-encoding", "content-type", "user-agent", "connection"} <= sent.keys()
        tools.queue("/y", text_reply(words))
        result = await call(http, tools.url("/y"))
        await http.close()
        assert result.text == words


@pytest.mark.spec("7.10")
async def test_half_a_credential_at_the_end_of_what_is_read_is_not_shown() -> None:
    secret = "s3cret-" + "k" * 3000
    async with ToolServer() as tools:
        given = {tools.origin: {"X-Key": SecretStr(secret)}}
        http = HttpTools((tools.origin,), 1024, ToolHeaders(given, (tools.origin,)))
        tools.queue("/x", ToolReply((secret * 1000).encode()))  # so short without them that the cut takes nothing off
        result = await call(http, tools.url("/x"))
        await http.close()
        assert "s3cret" not in result.text
        assert result.text.endswith(f"[cut] [{len(secret) * 1000} bytes]")


@pytest.mark.parametrize(
    "name", ["Host", "Content-Length", "Transfer-Encoding", "Idempotency-Key", "Proxy-Authorization", "grpc-timeout"]
)
def test_what_the_call_itself_decides_is_refused(name: str) -> None:
    with pytest.raises(HeaderRefused, match="no header that may be set"):
        ToolHeaders({"a:1": {name: SecretStr(SECRET)}}, ["a:1"])


@pytest.mark.parametrize("name", ["", "a b", "a\r\nb", "key-bin", ":path", "é"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(HeaderRefused):
        ToolHeaders({"a:1": {name: SecretStr(SECRET)}}, ["a:1"])


@pytest.mark.parametrize("value", ["", f"{SECRET}\r\nEvil: 1", f"{SECRET}é", f" {SECRET}"])
def test_a_value_that_is_none_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(HeaderRefused) as refused:
        ToolHeaders({"a:1": {"X-Key": SecretStr(value)}}, ["a:1"])
    assert "s3cret" not in str(refused.value)


@pytest.mark.spec("7.10")
async def test_a_destination_that_tools_may_not_call_stops_the_start() -> None:
    headers = json.dumps({"https://elsewhere.example": {"X-Key": SECRET}})
    settings = Settings(tool_origins=("https://tools.example",), tool_headers=headers)
    with pytest.raises(HeaderRefused, match="elsewhere") as refused:
        async with runner_app(settings):
            pass
    assert SECRET not in str(refused.value) + repr(settings)


@pytest.mark.parametrize("written", [f"{{{SECRET}", f'["{SECRET}"]', f'{{"a:1": "{SECRET}"}}'])
def test_a_setting_that_cannot_be_read_is_not_quoted(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("TURNKEEPER_RUNNER_TOOL_HEADERS", written)
    with pytest.raises(ValidationError) as wrong:
        Settings()
    assert SECRET not in str(wrong.value)


def test_the_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNKEEPER_RUNNER_GRPC_TARGETS", "a:1, grpcs://b:2")
    monkeypatch.setenv("TURNKEEPER_RUNNER_TOOL_HEADERS", '{"b:2": {"X-Key": "k"}}')
    settings = Settings()
    assert settings.grpc_targets == ("a:1", "grpcs://b:2")
    assert settings.tool_headers["b:2"]["X-Key"].get_secret_value() == "k"
