"""Headers that the operator adds to the calls of one destination (SPEC 7.10). No config and no model can name one."""

import re
from collections.abc import Collection, Mapping

from pydantic import SecretStr

from runner_service.tools.address import AddressRefused, origin_of
from runner_service.tools.targets import target_of

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
# What the call itself decides, and what HTTP and gRPC keep to themselves.
_OURS = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "content-encoding",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "idempotency-key",
        "accept-encoding",
        "user-agent",
    }
)


class HeaderRefused(Exception):
    """The setting cannot be used; the message says why, without any value."""


class ToolHeaders:
    """Per destination, the headers to add. Shows no value by accident."""

    def __init__(self, given: Mapping[str, Mapping[str, SecretStr]], allowed: Collection[str]) -> None:
        """`given` by origin or gRPC target; each must be among `allowed`, in the form of `destination_of`."""
        self._given: dict[str, Mapping[str, SecretStr]] = {}
        for written, headers in given.items():
            try:
                destination = destination_of(written)
            except AddressRefused as error:
                raise HeaderRefused(f"tool_headers: {error}") from None
            if destination not in allowed:
                raise HeaderRefused(f"tool_headers: {destination} is no allowed origin or target")
            self._given[destination] = {_name(name): _checked(name, value) for name, value in headers.items()}

    def of(self, destination: str) -> dict[str, str]:
        """The headers for calls to this destination, names in lower case. To be sent there and nowhere else."""
        return {name: value.get_secret_value() for name, value in self._given.get(destination, {}).items()}


def destination_of(written: str) -> str:
    """An origin with its port, or a gRPC target, in the one form that is compared."""
    return origin_of(written) if "://" in written else target_of(written)


def _name(written: str) -> str:
    name = written.lower()
    if not _NAME.fullmatch(name) or name in _OURS or name.startswith(("grpc-", "proxy-")) or name.endswith("-bin"):
        raise HeaderRefused(f"tool_headers: {written!r} is no header that may be set")
    return name


def _checked(name: str, value: SecretStr) -> SecretStr:
    if not _VALUE.fullmatch(value.get_secret_value()):
        raise HeaderRefused(f"tool_headers: the value of {name!r} is not printable ASCII")
    return value
