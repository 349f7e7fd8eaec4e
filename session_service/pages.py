"""Page tokens: where a list goes on, sealed for one caller and one list (SPEC 11.3)."""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from google.protobuf.message import Message
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import invalid

DEFAULT_SIZE = 50
_TAG_BYTES = 16

Position: TypeAlias = Sequence[int | str]
"""The key of the last row that a page showed."""


class Pages:
    """Seals and opens page tokens with the key that all replicas share."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, context: RequestContext, request: Message, position: Position) -> str:
        """The token of the page after `position`, for this caller and this list request."""
        payload = json.dumps(list(position), separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._tag(context, request, payload) + payload).decode().rstrip("=")

    def open(self, context: RequestContext, request: Any) -> list[Any] | None:
        """Where the request's page begins: after this position; None for the first page.

        A token that was tampered with, or made for another caller or list, is INVALID_ARGUMENT.
        """
        token: str = request.page_token
        if not token:
            return None
        sealed = _decoded(token)
        tag, payload = sealed[:_TAG_BYTES], sealed[_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(context, request, payload)):
            raise invalid("page_token", "is not a token of this list")
        position: list[Any] = json.loads(payload)
        return position

    def _tag(self, context: RequestContext, request: Message, payload: bytes) -> bytes:
        """Over who asks, which list (the request without its page) and the position, each with its length."""
        listed = type(request)()
        listed.CopyFrom(request)
        listed.ClearField("page_token")
        listed.ClearField("page_size")
        listed.DiscardUnknownFields()
        parts = (
            context.tenant_id.encode(),
            context.user_id.encode(),
            request.DESCRIPTOR.full_name.encode(),
            listed.SerializeToString(deterministic=True),
            payload,
        )
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            mac.update(len(part).to_bytes(8, "big") + part)
        return mac.digest()[:_TAG_BYTES]


def page_size(asked: int) -> int:
    """How many items a page may have; 0 asks for the default."""
    return asked or DEFAULT_SIZE


def _decoded(token: str) -> bytes:
    """The token's bytes; only its one exact spelling is one, so that no changed character goes unseen."""
    try:
        sealed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        sealed = b""
    if base64.urlsafe_b64encode(sealed).decode().rstrip("=") != token:
        raise invalid("page_token", "is not a token of this list")
    return sealed
