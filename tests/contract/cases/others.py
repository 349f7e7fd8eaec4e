"""The cases of SecretService, IdentityService and AdminService."""

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.message import Message
from turnkeeper.v1 import admin_service_pb2 as admin
from turnkeeper.v1 import identity_service_pb2 as identity
from turnkeeper.v1 import run_pb2
from turnkeeper.v1 import secret_service_pb2 as secrets

from tests.contract.cases.case import UNIMPLEMENTED, Case
from tests.contract.worlds import World


def _secret(method: str, make: Callable[[World], Message], required: str = "") -> Case:
    return Case(f"SecretService/{method}", "secrets:write", make, required, answer=UNIMPLEMENTED)


def _admin(method: str, kind: type[Message], required: str, make: Callable[[World], Mapping[str, Any]]) -> Case:
    def request(world: World) -> Message:
        return kind(tenant_id=world.tenant, reason="ticket 1", **make(world))

    required = f"tenant_id reason {required}".rstrip()
    return Case(f"AdminService/{method}", "admin", request, required, answer=UNIMPLEMENTED)


OTHERS = (
    _secret("PutSecret", lambda _: secrets.PutSecretRequest(name="key", value=b"value"), "name value"),
    _secret("ListSecrets", lambda _: secrets.ListSecretsRequest(page_size=200)),
    _secret("DeleteSecret", lambda _: secrets.DeleteSecretRequest(name="key"), "name"),
    Case("IdentityService/WhoAmI", None, lambda _: identity.WhoAmIRequest()),
    Case("IdentityService/GetVerificationKeys", None, lambda _: identity.GetVerificationKeysRequest(), kind=None),
    _admin(
        "ListSessions",
        admin.AdminServiceListSessionsRequest,
        "",
        lambda world: {"page_size": 200, "owner_user_id": world.user},
    ),
    _admin("GetRun", admin.AdminServiceGetRunRequest, "run_id", lambda world: {"run_id": world.run_id}),
    _admin(
        "ListRuns",
        admin.AdminServiceListRunsRequest,
        "",
        lambda world: {
            "page_size": 200,
            "session_id": world.session_id,
            "states": [run_pb2.RUN_STATE_COMPLETED],
        },
    ),
    _admin("CancelRun", admin.AdminServiceCancelRunRequest, "run_id", lambda world: {"run_id": world.run_id}),
    _admin("DeactivateTenant", admin.AdminServiceDeactivateTenantRequest, "", lambda _: {}),
    _admin("DeleteUserData", admin.AdminServiceDeleteUserDataRequest, "user_id", lambda world: {"user_id": world.user}),
    _admin(
        "SetRetention",
        admin.AdminServiceSetRetentionRequest,
        "",
        lambda _: {"kind": admin.RETENTION_KIND_EVENTS, "days": 30},
    ),
    _admin("ListAuditEntries", admin.AdminServiceListAuditEntriesRequest, "", lambda _: {"page_size": 200}),
)
