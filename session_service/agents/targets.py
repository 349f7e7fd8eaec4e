"""References of one request, resolved together into one coherent target (SPEC 2.6)."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection
from turnkeeper.v1 import error_reason_pb2
from turnkeeper.wire.errors import Refused, invalid, not_found

from session_service.agents import store
from session_service.agents.model import Family, Level, Reference, Resolution, Revision, Target, Variant


@dataclass(frozen=True, slots=True)
class _Named:
    """What one reference names: an agent, and as much below it as the reference says."""

    family: Family
    level: Level
    agent_id: str
    variant_id: str | None = None
    revision: Revision | None = None


def resolve(connection: Connection, tenant_id: str, references: Sequence[Reference]) -> Resolution:
    """The one target that the references mean together.

    Foreign or missing: NOT_FOUND. Contradicting each other: REFERENCE_INCOHERENT. Coherent, but of more than one
    agent: ambiguous. Nothing is locked: a run pins what was the head when its start looked.
    """
    named: list[_Named] = []
    # Agents first: the slug of a variant is unique within one only.
    for place, reference in sorted(enumerate(references), key=lambda item: item[1].level is not Level.ARTIFACT):
        named.append(_look_up(connection, tenant_id, reference, f"references[{place}]", named))
    if not named:
        return Resolution(None, ambiguous=False)
    for family in Family:
        _require_coherent([each for each in named if each.family is family])
    if len({each.agent_id for each in named}) > 1:
        return Resolution(None, ambiguous=True)
    return Resolution(_target(connection, tenant_id, named), ambiguous=False)


def _look_up(
    connection: Connection, tenant_id: str, reference: Reference, field: str, named: Sequence[_Named]
) -> _Named:
    if reference.version is not None and reference.level is not Level.REVISION:
        raise invalid(f"{field}.version", "goes with level REVISION only")
    if reference.level is Level.ARTIFACT:
        agent = store.find_agent(connection, tenant_id, agent_id=reference.id, slug=reference.slug)
        if agent is None:
            raise not_found("reference")
        return _Named(reference.family, reference.level, agent.agent_id)
    if reference.level is Level.REVISION and reference.version is None:
        if reference.id is None:
            raise invalid(f"{field}.slug", "a revision has no slug: give its id, or its variant and version")
        revision = store.find_revision(connection, tenant_id, reference.id)
        return _of_revision(reference, revision)
    variant = _variant(connection, tenant_id, reference, field, named)
    if reference.version is None:
        return _Named(reference.family, reference.level, variant.agent_id, variant.variant_id)
    return _of_revision(reference, store.find_version(connection, tenant_id, variant.variant_id, reference.version))


def _variant(
    connection: Connection, tenant_id: str, reference: Reference, field: str, named: Sequence[_Named]
) -> Variant:
    if reference.id is not None:
        variant = store.find_variant(connection, tenant_id, reference.id)
    else:
        agents = {each.agent_id for each in named if each.family is reference.family} or {
            each.agent_id for each in named
        }
        if len(agents) != 1:
            raise invalid(f"{field}.slug", "a variant's slug needs a reference to its agent, and to no other")
        variant = store.find_variant(connection, tenant_id, agent_id=agents.pop(), slug=reference.slug)
    if variant is None:
        raise not_found("reference")
    return variant


def _of_revision(reference: Reference, revision: Revision | None) -> _Named:
    if revision is None:
        raise not_found("reference")
    return _Named(reference.family, reference.level, revision.agent_id, revision.variant_id, revision)


def _require_coherent(named: Sequence[_Named]) -> None:
    """Within one family, what is below must belong to what is above."""
    agents = {each.agent_id for each in named if each.level is Level.ARTIFACT}
    variants = {each.variant_id for each in named if each.level is Level.VARIANT}
    for each in named:
        strange_agent = bool(agents) and each.agent_id not in agents
        strange_variant = each.revision is not None and bool(variants) and each.variant_id not in variants
        if strange_agent or strange_variant:
            raise Refused(error_reason_pb2.ERROR_REASON_REFERENCE_INCOHERENT)


def _target(connection: Connection, tenant_id: str, named: Sequence[_Named]) -> Target:
    """The target of references that all name one agent."""
    agent_id = named[0].agent_id
    variant_ids = {each.variant_id for each in named if each.variant_id is not None}
    revisions = {each.revision.revision_id: each.revision for each in named if each.revision is not None}
    if len(variant_ids) > 1 or len(revisions) > 1:
        raise Refused(error_reason_pb2.ERROR_REASON_REFERENCE_INCOHERENT)
    if revisions:
        return _with_revision(*revisions.values())
    variant = (
        store.find_variant(connection, tenant_id, variant_ids.pop())
        if variant_ids
        else store.find_default_variant(connection, tenant_id, agent_id)
    )
    if variant is None:
        raise not_found("reference")
    if variant.head_revision_id is None:
        return Target(agent_id, variant.variant_id, None, None, None, None)
    head = store.find_revision(connection, tenant_id, variant.head_revision_id)
    if head is None:
        raise not_found("reference")
    return _with_revision(head)


def _with_revision(revision: Revision) -> Target:
    return Target(
        agent_id=revision.agent_id,
        variant_id=revision.variant_id,
        revision_id=revision.revision_id,
        version=revision.version,
        config_json=revision.config_json,
        config_hash=revision.config_hash,
    )
