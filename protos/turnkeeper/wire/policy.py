"""Who may call which method, with which token and scope, and whether a repeat is harmless (SPEC 1.2, 1.3)."""

from collections.abc import Mapping
from dataclasses import dataclass

from turnkeeper.v1 import error_reason_pb2
from turnkeeper.wire.context import TokenKind
from turnkeeper.wire.errors import Refused

SCOPES = frozenset(
    {
        "sessions:read",
        "sessions:write",
        "runs:read",
        "runs:write",
        "agents:read",
        "agents:write",
        "secrets:write",
        "runner:invoke",
        "tools:bind",
        "admin",
    }
)


@dataclass(frozen=True, slots=True)
class Access:
    """The kinds of token that a method takes, each with the scope it needs (None: none); no kinds at all means public.

    `idempotent`: a client may send the call again without knowing whether the first one was executed.
    """

    kinds: Mapping[TokenKind, str | None]
    idempotent: bool = False

    @property
    def public(self) -> bool:
        """Whether the method takes calls without a token."""
        return not self.kinds


PUBLIC = Access({}, idempotent=True)

# Health and reflection belong to gRPC and name no data of ours.
PUBLIC_SERVICES = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection")


def _user(scope: str | None, *, idempotent: bool = False) -> Access:
    return Access({TokenKind.USER: scope}, idempotent)


def _read(scope: str) -> Access:
    return _user(scope, idempotent=True)


def _user_or_run(scope: str, run_scope: str | None, *, idempotent: bool = False) -> Access:
    return Access({TokenKind.USER: scope, TokenKind.RUN: run_scope}, idempotent)


def _run(*, idempotent: bool = False) -> Access:
    # A run token is bound to its own run, so it needs no scope here.
    return Access({TokenKind.RUN: None}, idempotent)


_SERVICE = Access({TokenKind.SERVICE: None}, idempotent=True)

_SERVICES: Mapping[str, Mapping[str, Access]] = {
    "SessionService": {
        "CreateSession": _user("sessions:write"),
        "GetSession": _user_or_run("sessions:read", None, idempotent=True),
        "RestoreSession": _user("sessions:write"),
        "ListSessions": _read("sessions:read"),
        "UpdateSession": _user_or_run("sessions:write", "sessions:write"),
        "DeleteSession": _user("sessions:write"),
        "ShareSession": _user("sessions:write"),
        "UnshareSession": _user("sessions:write"),
        "ListSessionShares": _read("sessions:read"),
        "AppendMessage": _user("sessions:write"),
        "ListMessages": _user_or_run("sessions:read", None, idempotent=True),
    },
    "RunService": {
        # Every start carries its key and every cancel keeps the first intent, so both may be repeated.
        "StartRun": _user("runs:write", idempotent=True),
        "GetRun": _read("runs:read"),
        "ListRuns": _read("runs:read"),
        "WatchRun": _read("runs:read"),
        "WatchSession": _read("runs:read"),
        "CancelRun": _user("runs:write", idempotent=True),
        "ResumeRun": _user("runs:write"),
    },
    "AgentService": {
        "CreateAgent": _user("agents:write"),
        "GetAgent": _read("agents:read"),
        "ListAgents": _read("agents:read"),
        "UpdateAgent": _user_or_run("agents:write", "agents:write"),
        "DeleteAgent": _user("agents:write"),
        "CreateVariant": _user("agents:write"),
        "ListVariants": _read("agents:read"),
        "CommitRevision": _user_or_run("agents:write", "agents:write"),
        "PatchRevision": _user_or_run("agents:write", "agents:write"),
        "GetRevision": _read("agents:read"),
        "ListRevisions": _read("agents:read"),
        "CompareConfig": _read("agents:read"),
    },
    "TurnService": {
        "ResolveTurnContext": _user_or_run("runner:invoke", None, idempotent=True),
        "BeginTurn": _user_or_run("runner:invoke", None),
        "BeginToolCall": _run(),
        "FinishToolCall": _run(idempotent=True),
        "ReportTurnStopped": _run(idempotent=True),
        "ResolveSecret": _run(idempotent=True),
    },
    "SecretService": {
        "PutSecret": _user("secrets:write"),
        "ListSecrets": _read("secrets:write"),
        "DeleteSecret": _user("secrets:write"),
    },
    "IdentityService": {
        "WhoAmI": _user(None, idempotent=True),
        "GetVerificationKeys": PUBLIC,
    },
    # Every admin call leaves an audit entry, so not even its reads are repeated unasked.
    "AdminService": {
        method: _user("admin")
        for method in (
            "ListSessions",
            "GetRun",
            "ListRuns",
            "CancelRun",
            "DeactivateTenant",
            "DeleteUserData",
            "SetRetention",
            "ListAuditEntries",
        )
    },
    "RunnerService": {
        "ExecuteTurn": _user_or_run("runner:invoke", None),
        "DescribeHarnessSessions": _SERVICE,
        "DeleteHarnessSession": _SERVICE,
        "ListHarnesses": _read("agents:read"),
        "BindToolBody": _read("tools:bind"),
    },
}

METHODS: Mapping[str, Access] = {
    f"/turnkeeper.v1.{service}/{method}": access
    for service, methods in _SERVICES.items()
    for method, access in methods.items()
}


def is_public_service(method: str) -> bool:
    """Whether `method` ("/package.Service/Method") belongs to health or reflection."""
    return method.startswith(tuple(f"/{service}/" for service in PUBLIC_SERVICES))


def authorise(access: Access | None, kind: TokenKind, scopes: frozenset[str]) -> None:
    """Refuses a token of the wrong kind or without the scope, before any look-up; None is a method nobody listed."""
    if access is None or kind not in access.kinds:
        raise Refused(error_reason_pb2.ERROR_REASON_TOKEN_KIND_REFUSED)
    scope = access.kinds[kind]
    if scope is not None and scope not in scopes:
        raise Refused(error_reason_pb2.ERROR_REASON_SCOPE_MISSING, metadata={"scope": scope})
