"""What goes out with a tool call beside its body, and what of it may never come back (SPEC 1.5, 7.10)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from turnkeeper.wire.context import Credential
from turnkeeper.wire.text import CUT_MARK, cut, repair

AUTHORIZATION = "authorization"
IDEMPOTENCY_KEY = "idempotency-key"
REMOVED = "[credential removed]"
# A shorter value would take innocent words out of an answer.
MIN_SECRET = 8


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One call's companions. `call_id` is the runner's id of the call; the empty key and no identity stay away."""

    call_id: str
    seconds: float
    """How long the call may take: the tool's limit within what is left of the turn."""
    idempotency_key: str = ""
    identity: Credential | None = None
    """The token that says to the tool for whom the call is made."""


def headers_for(outgoing: Outgoing, given: Mapping[str, str]) -> dict[str, str]:
    """All headers of one call, names in lower case; `given` come from the settings, for its destination.

    A tool that is told the caller's identity is told it in place of the runner's own authorization.
    """
    headers = dict(given)
    if outgoing.identity is not None:
        headers[AUTHORIZATION] = f"Bearer {outgoing.identity.reveal()}"
    if outgoing.idempotency_key:
        headers[IDEMPOTENCY_KEY] = outgoing.idempotency_key
    return headers


def bounded(text: str, max_bytes: int, sent: Mapping[str, str], *, whole_bytes: int = 0) -> str:
    """A tool's text as it may be kept and shown: without what was sent in confidence, repaired, and cut with its size.

    `sent` is what `headers_for` gave, which a tool may well repeat in its answer. `whole_bytes` is the size of the
    answer when `text` is its beginning only.
    """
    secrets = sorted(_secrets(sent.items()), key=len, reverse=True)
    for secret in secrets:
        text = text.replace(secret, REMOVED)
    if whole_bytes and secrets:
        # Its end may be the first part of a secret.
        text = text[: -len(secrets[0])]
    short, original = cut(repair(text), max_bytes)
    if whole_bytes and not original:
        short += CUT_MARK
    return f"{short} [{whole_bytes or original} bytes]" if whole_bytes or original else short


def _secrets(headers: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, value in headers:
        if name != IDEMPOTENCY_KEY:
            yield from (part for part in (value, value.rpartition(" ")[2]) if len(part) >= MIN_SECRET)
