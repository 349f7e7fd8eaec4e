"""What makes two starts the same start (SPEC 2.2)."""

import hashlib
import json

from turnkeeper.wire.json_text import canonical

from session_service.runs.model import StartOrder

VERSION = "v1"


def config_hash(config_json: str) -> str:
    """SHA-256 of a config's canonical form, in hexadecimal: equal for configs that are equal by mathematical value."""
    return hashlib.sha256(canonical(config_json)).hexdigest()


def fingerprint(user_id: str, order: StartOrder) -> str:
    """The version and the SHA-256 of the start's canonical JSON. Timeout, policy and labels are not in it."""
    start = {
        "user": user_id,
        "session": order.session_id,
        "input": order.input,
        "references": [
            {"family": r.family, "level": r.level, "id": r.id, "slug": r.slug, "version": r.version}
            for r in order.references
        ],
        # By its hash, so that a config of the greatest allowed depth still fits into one document.
        "config": config_hash(order.config_json) if order.config_json else None,
    }
    return f"{VERSION}:{hashlib.sha256(canonical(json.dumps(start))).hexdigest()}"
