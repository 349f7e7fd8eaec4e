"""The gRPC targets that tools may call: "host:port", and how to reach each (SPEC 7.10)."""

import re
from collections.abc import Iterable, Mapping

from runner_service.tools.address import AddressRefused

TLS = "grpcs://"
_TARGET = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\]):[0-9]{1,5}")


def target_of(written: str) -> str:
    """A target in the one form that is compared."""
    target = written.lower()
    if not _TARGET.fullmatch(target):
        raise AddressRefused(f"{written!r} is no gRPC target: host:port is needed")
    return target


def read_targets(settings: Iterable[str]) -> Mapping[str, bool]:
    """The allowed targets, and whether each is called over TLS: those are written "grpcs://host:port"."""
    return {target_of(each.removeprefix(TLS)): each.startswith(TLS) for each in settings}
