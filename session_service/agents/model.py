"""The values of agents and of references to them. Times are microseconds since 1970 in the database's clock."""

from dataclasses import dataclass
from enum import StrEnum

from session_service.sessions.model import NameSource


@dataclass(frozen=True, slots=True)
class Agent:
    """An artifact: what a reference names."""

    agent_id: str
    slug: str
    name: str | None
    name_source: NameSource | None
    default_variant_id: str
    create_time: int
    update_time: int


@dataclass(frozen=True, slots=True)
class Variant:
    """A line of revisions of an agent; `head_revision_id` is None before the first commit."""

    variant_id: str
    agent_id: str
    slug: str
    head_revision_id: str | None
    create_time: int


@dataclass(frozen=True, slots=True)
class Revision:
    """An immutable config; `version` is "0", "1", … per variant."""

    revision_id: str
    variant_id: str
    agent_id: str
    version: str
    config_json: str
    config_hash: str
    message: str
    author_user_id: str
    create_time: int


class Family(StrEnum):
    """The role that a reference plays in the caller's system; all name agents."""

    APPLICATION = "APPLICATION"
    WORKFLOW = "WORKFLOW"
    EVALUATOR = "EVALUATOR"


class Level(StrEnum):
    """What a reference names."""

    ARTIFACT = "ARTIFACT"
    VARIANT = "VARIANT"
    REVISION = "REVISION"


@dataclass(frozen=True, slots=True)
class Reference:
    """Names an agent, a variant or a revision: by `id` or by `slug`; `version` names a revision beside its variant."""

    family: Family
    level: Level
    id: str | None = None
    slug: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What a run executes. A variant without any commit has no revision and no config: all four are None."""

    agent_id: str
    variant_id: str
    revision_id: str | None
    version: str | None
    config_json: str | None
    config_hash: str | None


@dataclass(frozen=True, slots=True)
class Resolution:
    """What references mean together: one target, or none, because there were none or they name several agents."""

    target: Target | None
    ambiguous: bool
