"""The agents' SQL. Agents belong to their tenant; what is below a deleted agent is gone with it."""

import uuid
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, insert, select, tuple_, update

from session_service.agents.model import Agent, Revision, Variant
from session_service.sessions.model import NameSource
from session_service.storage.clock import Now
from session_service.storage.insert import insert_if_new
from session_service.storage.schema import agents, revisions, variants

_LAST_VERSION = 2**63 - 1
_OF_AGENT = and_(agents.c.tenant_id == variants.c.tenant_id, agents.c.agent_id == variants.c.agent_id)
_OF_VARIANT = and_(variants.c.tenant_id == revisions.c.tenant_id, variants.c.variant_id == revisions.c.variant_id)


def insert_agent(
    connection: Connection, tenant_id: str, slug: str, name: str | None, source: NameSource | None
) -> str | None:
    """Adds an agent with an empty default variant, and answers its id; None when the slug is taken."""
    agent_id, variant_id = str(uuid.uuid4()), str(uuid.uuid4())
    values: dict[str, object] = {
        "tenant_id": tenant_id,
        "agent_id": agent_id,
        "slug": slug,
        "name": name,
        "name_source": source,
        "default_variant_id": variant_id,
        "create_time": Now(),
        "update_time": Now(),
    }
    if not insert_if_new(connection, agents, values):
        return None
    _insert_variant(connection, tenant_id, agent_id, variant_id, "default")
    return agent_id


def find_agent(
    connection: Connection, tenant_id: str, *, agent_id: str | None = None, slug: str | None = None
) -> Agent | None:
    """The agent of this id, else of this slug."""
    named = agents.c.agent_id == agent_id if agent_id is not None else agents.c.slug == slug
    row = connection.execute(_agents(tenant_id).where(named)).one_or_none()
    return None if row is None else _agent(row)


def read_agents(connection: Connection, tenant_id: str, before: tuple[int, str] | None, limit: int) -> list[Agent]:
    """The tenant's agents, newest first, after the place (create_time, agent_id) where a page ended."""
    query = _agents(tenant_id)
    if before is not None:
        query = query.where(tuple_(agents.c.create_time, agents.c.agent_id) < tuple_(*before))
    rows = connection.execute(query.order_by(agents.c.create_time.desc(), agents.c.agent_id.desc()).limit(limit))
    return [_agent(row) for row in rows]


def lock_agent(connection: Connection, tenant_id: str, agent_id: str) -> bool:
    """Locks the agent until the transaction ends; says whether there is one."""
    query = _agents(tenant_id).where(agents.c.agent_id == agent_id)
    return connection.execute(query.with_for_update(key_share=True)).one_or_none() is not None


def set_name(connection: Connection, tenant_id: str, agent_id: str, name: str | None, source: NameSource) -> bool:
    """Renames the agent unless an automatic name would replace a user's; says whether it did (SPEC 8.7)."""
    allowed = and_(agents.c.tenant_id == tenant_id, agents.c.agent_id == agent_id, agents.c.delete_time.is_(None))
    if source is NameSource.AUTOMATIC:
        allowed = and_(allowed, agents.c.name_source.is_distinct_from(NameSource.USER))
    change = update(agents).where(allowed).values(name=name, name_source=source if name else None, update_time=Now())
    return connection.execute(change).rowcount == 1


def insert_variant(connection: Connection, tenant_id: str, agent_id: str, slug: str) -> str | None:
    """Adds an empty variant to the agent, and answers its id; None when the agent has one of that slug."""
    variant_id = str(uuid.uuid4())
    return variant_id if _insert_variant(connection, tenant_id, agent_id, variant_id, slug) else None


def find_variant(
    connection: Connection,
    tenant_id: str,
    variant_id: str | None = None,
    *,
    agent_id: str | None = None,
    slug: str | None = None,
) -> Variant | None:
    """The variant of this id, else the agent's of this slug."""
    by_slug = and_(variants.c.agent_id == agent_id, variants.c.slug == slug)
    named = variants.c.variant_id == variant_id if variant_id is not None else by_slug
    row = connection.execute(_variants(tenant_id).where(named)).one_or_none()
    return None if row is None else _variant(row)


def find_default_variant(connection: Connection, tenant_id: str, agent_id: str) -> Variant | None:
    """The variant that a reference to the agent alone means."""
    is_default = and_(agents.c.agent_id == agent_id, variants.c.variant_id == agents.c.default_variant_id)
    row = connection.execute(_variants(tenant_id).where(is_default)).one_or_none()
    return None if row is None else _variant(row)


def lock_variant(connection: Connection, tenant_id: str, variant_id: str) -> Variant | None:
    """The variant, locked until the transaction ends, so that its line of revisions stays a line (SPEC 8.3)."""
    query = _variants(tenant_id).where(variants.c.variant_id == variant_id)
    row = connection.execute(query.with_for_update(of=variants, key_share=True)).one_or_none()
    return None if row is None else _variant(row)


def read_variants(
    connection: Connection, tenant_id: str, agent_id: str, before: tuple[int, str] | None, limit: int
) -> list[Variant]:
    """The agent's variants, newest first, after the place (create_time, variant_id) where a page ended."""
    query = _variants(tenant_id).where(variants.c.agent_id == agent_id)
    if before is not None:
        query = query.where(tuple_(variants.c.create_time, variants.c.variant_id) < tuple_(*before))
    rows = connection.execute(query.order_by(variants.c.create_time.desc(), variants.c.variant_id.desc()).limit(limit))
    return [_variant(row) for row in rows]


def insert_revision(
    connection: Connection,
    tenant_id: str,
    variant: Variant,
    *,
    config_json: str,
    config_hash: str,
    message: str,
    author_user_id: str,
) -> str:
    """Adds the next revision to the (locked) variant, as its head, and answers its id."""
    revision_id = str(uuid.uuid4())
    count = connection.execute(
        update(variants)
        .where(variants.c.tenant_id == tenant_id, variants.c.variant_id == variant.variant_id)
        .values(head_revision_id=revision_id, revision_count=variants.c.revision_count + 1)
        .returning(variants.c.revision_count)
    ).scalar_one()
    connection.execute(
        insert(revisions).values(
            tenant_id=tenant_id,
            revision_id=revision_id,
            variant_id=variant.variant_id,
            agent_id=variant.agent_id,
            version=count - 1,
            config_json=config_json,
            config_hash=config_hash,
            message=message,
            author_user_id=author_user_id,
            create_time=Now(),
        )
    )
    return revision_id


def find_revision(connection: Connection, tenant_id: str, revision_id: str) -> Revision | None:
    """The revision of this id."""
    row = connection.execute(_revisions(tenant_id).where(revisions.c.revision_id == revision_id)).one_or_none()
    return None if row is None else _revision(row)


def find_version(connection: Connection, tenant_id: str, variant_id: str, version: str) -> Revision | None:
    """The variant's revision of this version; a text that is no version names none."""
    if not (version.isascii() and version.isdecimal() and version == str(int(version[:20]))):
        return None
    number = int(version)
    if number > _LAST_VERSION:
        return None
    named = and_(revisions.c.variant_id == variant_id, revisions.c.version == number)
    row = connection.execute(_revisions(tenant_id).where(named)).one_or_none()
    return None if row is None else _revision(row)


def _insert_variant(connection: Connection, tenant_id: str, agent_id: str, variant_id: str, slug: str) -> bool:
    values: dict[str, object] = {
        "tenant_id": tenant_id,
        "variant_id": variant_id,
        "agent_id": agent_id,
        "slug": slug,
        "create_time": Now(),
    }
    return insert_if_new(connection, variants, values)


def _agents(tenant_id: str) -> Select[Any]:
    return select(agents).where(agents.c.tenant_id == tenant_id, agents.c.delete_time.is_(None))


def _variants(tenant_id: str) -> Select[Any]:
    mine = and_(variants.c.tenant_id == tenant_id, agents.c.delete_time.is_(None))
    return select(variants).join(agents, _OF_AGENT).where(mine)


def _revisions(tenant_id: str) -> Select[Any]:
    mine = and_(revisions.c.tenant_id == tenant_id, agents.c.delete_time.is_(None))
    return select(revisions).join(variants, _OF_VARIANT).join(agents, _OF_AGENT).where(mine)


def _agent(row: Row[Any]) -> Agent:
    return Agent(
        agent_id=row.agent_id,
        slug=row.slug,
        name=row.name,
        name_source=None if row.name_source is None else NameSource(row.name_source),
        default_variant_id=row.default_variant_id,
        create_time=row.create_time,
        update_time=row.update_time,
    )


def _variant(row: Row[Any]) -> Variant:
    return Variant(
        variant_id=row.variant_id,
        agent_id=row.agent_id,
        slug=row.slug,
        head_revision_id=row.head_revision_id,
        create_time=row.create_time,
    )


def _revision(row: Row[Any]) -> Revision:
    return Revision(
        revision_id=row.revision_id,
        variant_id=row.variant_id,
        agent_id=row.agent_id,
        version=str(row.version),
        config_json=row.config_json,
        config_hash=row.config_hash,
        message=row.message,
        author_user_id=row.author_user_id,
        create_time=row.create_time,
    )
