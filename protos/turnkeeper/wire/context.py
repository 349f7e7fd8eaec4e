"""Who calls, as the verified token says it; passed as an argument and never rebuilt (SPEC 1.1)."""

import time
from dataclasses import dataclass
from enum import Enum, auto

from turnkeeper.v1 import error_reason_pb2
from turnkeeper.wire.errors import Refused


class TokenKind(Enum):
    """What a bearer token stands for (SPEC 1.2)."""

    USER = auto()
    """A person or a program of the organisation, vouched for by its issuer."""
    RUN = auto()
    """One attempt of one run, minted by the session service."""
    SERVICE = auto()
    """The session service itself, on behalf of a tenant."""


@dataclass(frozen=True, slots=True)
class RunClaims:
    """The attempt that a run token stands for. Ids are canonical UUIDs; attempts count from 1."""

    session_id: str
    run_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The caller and the call, immutable. `deadline` is on the `time.time()` clock; None when the caller set none."""

    call_id: str
    trace_id: str
    tenant_id: str
    user_id: str
    roles: tuple[str, ...]
    scopes: frozenset[str]
    locale: str
    deadline: float | None
    kind: TokenKind
    expire_time: int
    """When the token expires, in seconds since the epoch."""
    run: RunClaims | None

    def require_run(self) -> RunClaims:
        """The attempt of the caller's run token; any other token is refused."""
        if self.run is None:
            raise Refused(error_reason_pb2.ERROR_REASON_TOKEN_KIND_REFUSED)
        return self.run


class Credential:
    """A bearer token that no log, repr or traceback shows by accident."""

    __slots__ = ("__token",)

    def __init__(self, token: str) -> None:
        self.__token = token

    def reveal(self) -> str:
        """The token itself, to be sent on as `authorization` and nowhere else."""
        return self.__token

    def __repr__(self) -> str:
        return "Credential(…)"

    def __reduce__(self) -> str:
        raise TypeError("a credential is never serialised")


@dataclass(frozen=True, slots=True)
class Call:
    """What a servicer's method gets in place of the gRPC context."""

    context: RequestContext
    credential: Credential
    expires: float | None = None
    """The call's gRPC deadline on the `time.monotonic()` clock; None when the caller set none."""

    def remaining(self) -> float | None:
        """Seconds until the call's gRPC deadline, never negative; None without one."""
        return None if self.expires is None else max(0.0, self.expires - time.monotonic())
