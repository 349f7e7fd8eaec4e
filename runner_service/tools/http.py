"""HTTP tools: one request, to an allowed origin, within its limit; its answer as bounded text (SPEC 7.10)."""

import asyncio
import codecs
import json
import re
from collections.abc import Collection, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx2
from turnkeeper.v1 import run_pb2
from turnkeeper.wire.configs import Effect, HttpRequest, ToolConfig

from runner_service.context.body import to_json
from runner_service.tools.address import AddressRefused, fill, origin_of
from runner_service.tools.headers import ToolHeaders
from runner_service.tools.model import ToolResult, failed
from runner_service.tools.outgoing import Outgoing, bounded, headers_for

CONNECT_SECONDS = 10.0
# What is read of an answer at most, so that a peer that never ends costs no memory.
MAX_ANSWER_BYTES = 16 * 2**20
# What is decoded of it: so many bytes as a result may take in any charset here, and what may hold a removed credential.
_MOST_BYTES_PER_BYTE = 4
_SLACK_BYTES = 64 * 2**10
# Python knows codecs that are no charsets, and some that take the square of a text's length: one answer in punycode
# would hold up every turn of the process.
_CHARSETS = re.compile(
    r"utf-?8|(us-)?ascii|latin-?1|iso-8859-([1-9]|1[01345])|windows-125[0-8]|utf-(16|32)(le|be)?",
    re.IGNORECASE,
)


class HttpTools:
    """Makes the requests of HTTP tools. One for the process; it keeps nothing of one call for another."""

    def __init__(self, origins: Collection[str], result_bytes: int, headers: ToolHeaders) -> None:
        """`origins` as "https://host:port"; results are cut to `result_bytes` of UTF-8."""
        self._origins = frozenset(origin_of(origin) for origin in origins)
        self._headers = headers
        self._result_bytes = result_bytes
        self._client = httpx2.AsyncClient(
            follow_redirects=False,
            # The time limit is one for the whole call: limits per read are stretched by a peer that drips.
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            # No proxy, netrc entry or cookie of one caller may take part in another's call.
            trust_env=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            # A reused connection that the peer is closing would leave it unknown whether a call took effect.
            limits=httpx2.Limits(max_keepalive_connections=0),
            headers={"Accept": "application/json, text/*;q=0.9, */*;q=0.5", "Accept-Encoding": "identity"},
        )

    async def close(self) -> None:
        """Closes what is still open."""
        await self._client.aclose()

    async def call(
        self, tool: ToolConfig, template: HttpRequest, body: Mapping[str, Any], outgoing: Outgoing
    ) -> ToolResult:
        """Sends a bound body and answers what the model is told; only a cancellation is raised."""
        try:
            sent = headers_for(outgoing, self._headers.of(origin_of(template.url)))
            request = self._request(template, dict(body), sent)
        except AddressRefused as error:
            return failed(f"The call was refused: {error}.")
        # Once the request may have left, a READ tool failed, but another may have taken effect.
        broken = run_pb2.TOOL_CALL_STATE_FAILED if tool.effect is Effect.READ else run_pb2.TOOL_CALL_STATE_UNKNOWN
        try:
            async with asyncio.timeout(outgoing.seconds):
                return await self._exchange(request, sent)
        except TimeoutError:
            return ToolResult(broken, f"The tool did not answer within {outgoing.seconds:g} s.")
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol):
            return failed("The tool could not be reached.")
        except httpx2.RequestError:
            return ToolResult(broken, "The connection to the tool broke before its answer was whole.")

    def _request(self, template: HttpRequest, body: dict[str, Any], sent: Mapping[str, str]) -> httpx2.Request:
        url = fill(template.url, body, self._origins)
        headers = dict(sent)
        if template.method == "GET":
            return self._client.build_request("GET", _with_query(url, body), headers=headers)
        if template.method == "DELETE" and not body:
            return self._client.build_request("DELETE", url, headers=headers)
        content = to_json(body).encode()
        headers["content-type"] = "application/json"
        return self._client.build_request(template.method, url, headers=headers, content=content)

    async def _exchange(self, request: httpx2.Request, sent: Mapping[str, str]) -> ToolResult:
        """`sent` are the headers that are this call's own: what any request has may be a word of any answer."""
        response = await self._client.send(request, stream=True)
        try:
            if response.is_redirect:
                return failed(f"The tool answered with status {response.status_code}; redirects are not followed.")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                return failed("The tool's answer is compressed, which was not asked for.")
            content = await _read(response)
            most = self._result_bytes * _MOST_BYTES_PER_BYTE + _SLACK_BYTES
            text = bounded(
                _text(content, response.charset_encoding, most),
                self._result_bytes,
                sent,
                whole_bytes=len(content) if len(content) > most else 0,
            )
            if response.is_success:
                return ToolResult(run_pb2.TOOL_CALL_STATE_SUCCEEDED, text)
            return failed(f"The tool answered with status {response.status_code}.\n{text}".rstrip())
        finally:
            await response.aclose()


def _text(content: bytes, charset: str | None, max_bytes: int) -> str:
    """The beginning of an answer as text. A charset that is not one of ours is read as UTF-8."""
    known = charset if charset and _CHARSETS.fullmatch(charset) else "utf-8"
    decoder = codecs.getincrementaldecoder(known)(errors="replace")
    # What is cut off may end in the middle of a character, which is then left out.
    return decoder.decode(content[:max_bytes], len(content) <= max_bytes)


async def _read(response: httpx2.Response) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            break
    return bytes(content)


def _with_query(url: str, body: dict[str, Any]) -> httpx2.URL:
    """A GET has no body, so what the path did not take goes into the query: texts as they are, the rest as JSON."""
    values = {
        key: value if isinstance(value, str) else json.dumps(value, allow_nan=False) for key, value in body.items()
    }
    return httpx2.URL(url).copy_merge_params(values) if values else httpx2.URL(url)
