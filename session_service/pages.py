"""Keyset pages, and their tokens: sealed for one caller and one list (SPEC 11.3)."""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from google.protobuf.message import Message
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import invalid

DEFAULT_SIZE = 50
_TAG_BYTES = 16

A = TypeVar("A", int, str)
B = TypeVar("B", int, str)
P = TypeVar("P", bound="tuple[Any, ...]")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[P]):
    """One page of a list: it begins after the row whose key is `after` (None: at the start), and has `limit` rows."""

    after: P | None
    limit: int
    _seal: Callable[[P], str]

    def close(self, found: Sequence[T], key: Callable[[T], P], at_most: int | None = None) -> tuple[Sequence[T], str]:
        """The rows to show, of those found (read limit + 1 of them), and the token of the next page, "" at the end.

        `at_most` ends the page sooner than its limit.
        """
        shown = found[: self.limit if at_most is None else min(self.limit, at_most)]
        return shown, self._seal(key(shown[-1])) if len(found) > len(shown) else ""


class PageTokens:
    """Opens the pages that requests ask for, with the key that all replicas share."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @overload
    def open(self, context: RequestContext, request: Any, first: type[A], /) -> Page[tuple[A]]: ...

    @overload
    def open(self, context: RequestContext, request: Any, first: type[A], second: type[B], /) -> Page[tuple[A, B]]: ...

    def open(self, context: RequestContext, request: Any, /, *_kinds: type) -> Page[Any]:
        """The page of a list request, whose rows are in the order of a key of these types.

        A token that was tampered with, or made for another caller or list, is INVALID_ARGUMENT.
        """

        def seal(position: tuple[Any, ...]) -> str:
            payload = json.dumps(position, separators=(",", ":")).encode()
            return base64.urlsafe_b64encode(self._tag(context, request, payload) + payload).decode().rstrip("=")

        after = self._unsealed(context, request) if request.page_token else None
        return Page(after, request.page_size or DEFAULT_SIZE, seal)

    def _unsealed(self, context: RequestContext, request: Any) -> tuple[Any, ...]:
        sealed = _decoded(request.page_token)
        tag, payload = sealed[:_TAG_BYTES], sealed[_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(context, request, payload)):
            raise invalid("page_token", "is not a token of this list")
        return tuple(json.loads(payload))

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


def _decoded(token: str) -> bytes:
    """The token's bytes; only its one exact spelling is one, so that no changed character goes unseen."""
    try:
        sealed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        sealed = b""
    if base64.urlsafe_b64encode(sealed).decode().rstrip("=") != token:
        raise invalid("page_token", "is not a token of this list")
    return sealed
