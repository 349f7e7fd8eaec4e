"""The address of an HTTP tool's request, which a model's argument can never lead elsewhere (SPEC 7.10)."""

import json
import re
from collections.abc import Collection
from typing import Any
from urllib.parse import quote, unquote, urlsplit

_PARAMETER = re.compile(r"\{([^{}]*)\}")
_DEFAULT_PORTS = {"http": 80, "https": 443}
# A server in between may decode more than once, so a value is judged as the last of them would read it.
_MAX_DECODINGS = 4


class AddressRefused(Exception):
    """No request may be sent; the message says why, without the value."""


def origin_of(url: str) -> str:
    """The origin of an absolute http or https URL, with its port: "https://tools.example:443"."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise AddressRefused("the tool's URL is malformed") from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or "{" in parts.netloc:
        raise AddressRefused("the tool's URL is not an absolute http or https URL")
    if "@" in parts.netloc:
        raise AddressRefused("the tool's URL holds credentials")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or _DEFAULT_PORTS[parts.scheme]}"


def fill(template: str, body: dict[str, Any], allowed_origins: Collection[str]) -> str:
    """The URL to request. The parameters of its path are taken out of `body`, which is changed."""
    origin = origin_of(template)
    if origin not in allowed_origins:
        raise AddressRefused(f"the origin {origin} is not allowed by the runner's settings")
    parts = urlsplit(template)
    if "{" in parts.query or parts.fragment:
        raise AddressRefused("the tool's URL has a parameter outside its path, or a fragment")
    _require_plain(_PARAMETER.sub("x", parts.path), "the tool's URL")
    path = _PARAMETER.sub(lambda found: _segment(found.group(1), body), parts.path)
    for name in {found.group(1) for found in _PARAMETER.finditer(parts.path)}:
        body.pop(name, None)
    return f"{parts.scheme}://{parts.netloc}{path}" + (f"?{parts.query}" if parts.query else "")


def _segment(name: str, body: dict[str, Any]) -> str:
    value = body.get(name)
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool | int | float):
        text = json.dumps(value)
    else:
        raise AddressRefused(f"the path parameter {name!r} is missing or not a scalar")
    if not text:
        raise AddressRefused(f"the path parameter {name!r} is empty")
    _require_plain(text, f"the path parameter {name!r}")
    return quote(text, safe="")


def _require_plain(text: str, what: str) -> None:
    decoded = text
    for _ in range(_MAX_DECODINGS):
        if ".." in decoded or "." in decoded.split("/"):
            raise AddressRefused(f"{what} climbs out of its place")
        if "\\" in decoded or any(char.isspace() or not char.isprintable() for char in decoded):
            raise AddressRefused(f"{what} has a back-slash, white-space or a control character")
        if (further := unquote(decoded)) == decoded:
            return
        decoded = further
    raise AddressRefused(f"{what} is encoded too often")
