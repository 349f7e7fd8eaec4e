"""What a turn executes: the one target of its references, beside the config that came inline (SPEC 2.5, 2.6)."""

from dataclasses import dataclass

from turnkeeper.v1 import error_reason_pb2 as reasons
from turnkeeper.wire.errors import Refused, not_found

from session_service.agents.model import Resolution
from session_service.runs.fingerprint import config_hash


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a turn executes; `config_json` only when that is no stored revision."""

    agent_id: str | None = None
    variant_id: str | None = None
    revision_id: str | None = None
    version: str | None = None
    is_draft: bool = False
    config_json: str | None = None


def pin(config_json: str | None, resolution: Resolution) -> Pinned:
    """Decides between the stored revision and the inline config; the caller's word for it is not asked (SPEC 8.2)."""
    if resolution.ambiguous and not config_json:
        raise Refused(reasons.ERROR_REASON_AGENT_AMBIGUOUS)
    target = resolution.target
    if target is None:
        return Pinned(config_json=config_json)
    if config_json and config_hash(config_json) != target.config_hash:
        return Pinned(target.agent_id, target.variant_id, is_draft=True, config_json=config_json)
    if target.revision_id is None:  # a variant without a first commit
        raise not_found("reference")
    return Pinned(target.agent_id, target.variant_id, target.revision_id, target.version)
