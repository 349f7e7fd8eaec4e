"""The facts' SQL: each read asks for what the caller may see, and for nothing else."""

from typing import Any

from sqlalchemy import Connection, Row, and_, select
from turnkeeper.wire.context import RequestContext

from session_service.runs.model import AnyRow
from session_service.sessions.access import visible
from session_service.storage.schema import agents, runs, sessions, turns, variants


def find_run(connection: Connection, context: RequestContext) -> AnyRow | None:
    """The run of the caller's token, if its session stands."""
    return connection.execute(
        select(runs)
        .join(sessions, and_(sessions.c.tenant_id == runs.c.tenant_id, sessions.c.session_id == runs.c.session_id))
        .where(visible(context), runs.c.run_id == context.require_run().run_id)
    ).one_or_none()


def find_session(connection: Connection, context: RequestContext, session_id: str) -> Row[Any, Any] | None:
    """The session's name and how many turns of it have begun."""
    return connection.execute(
        select(sessions.c.name, sessions.c.last_turn_number).where(
            visible(context), sessions.c.session_id == session_id
        )
    ).one_or_none()


def number_of_run_turn(connection: Connection, run: AnyRow) -> int | None:
    """The number of the run's current turn among the turns of its session, once it has begun."""
    return connection.execute(
        select(turns.c.turn_number).where(
            turns.c.tenant_id == run.tenant_id, turns.c.run_id == run.run_id, turns.c.run_turn == run.turn
        )
    ).scalar_one_or_none()


def direct_turn_begun(connection: Connection, tenant_id: str, session_id: str, turn_number: int) -> bool:
    """Whether a direct turn of this session has this number."""
    found = connection.execute(
        select(turns.c.turn_number).where(
            turns.c.tenant_id == tenant_id,
            turns.c.session_id == session_id,
            turns.c.turn_number == turn_number,
            turns.c.run_id.is_(None),
        )
    )
    return found.first() is not None


def find_agent_names(
    connection: Connection, tenant_id: str, agent_id: str, variant_id: str
) -> Row[Any, Any, Any] | None:
    """An agent's name and slug beside its variant's slug; None when the agent was deleted."""
    return connection.execute(
        select(agents.c.name, agents.c.slug, variants.c.slug.label("variant_slug"))
        .join(variants, and_(variants.c.tenant_id == agents.c.tenant_id, variants.c.agent_id == agents.c.agent_id))
        .where(
            agents.c.tenant_id == tenant_id,
            agents.c.agent_id == agent_id,
            agents.c.delete_time.is_(None),
            variants.c.variant_id == variant_id,
        )
    ).one_or_none()
