"""IdentityService: translates; decides nothing."""

from google.protobuf.timestamp_pb2 import Timestamp
from turnkeeper.v1.identity_service_pb2 import (
    GetVerificationKeysRequest,
    GetVerificationKeysResponse,
    WhoAmIRequest,
    WhoAmIResponse,
)
from turnkeeper.wire.context import Call

from session_service.identity.keys import KeyRing


class IdentityServicer:
    """Says who the caller is, and how to verify what this service signs."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    async def WhoAmI(self, _request: WhoAmIRequest, call: Call) -> WhoAmIResponse:
        """SPEC 1.1."""
        context = call.context
        return WhoAmIResponse(
            tenant_id=context.tenant_id,
            user_id=context.user_id,
            roles=context.roles,
            scopes=sorted(context.scopes),
            expire_time=Timestamp(seconds=context.expire_time),
        )

    async def GetVerificationKeys(
        self, _request: GetVerificationKeysRequest, _call: None
    ) -> GetVerificationKeysResponse:
        """SPEC 1.5."""
        return GetVerificationKeysResponse(jwks_json=self._keys.jwks())
