"""The facts' SQL: each read asks for what the caller may see, and for nothing else."""

from sqlalchemy import Connection, and_, bindparam, select
from turnkeeper.wire.context import RequestContext

from session_service.runs.model import AnyRow
from session_service.sessions.access import owned_by, visible
from session_service.storage.schema import agents, runs, sessions, turns, variants

# Built once: these two are read in every turn, and building them costs more than running them.
_RUN_PARAMETERS = (
    runs.c.tenant_id == bindparam("tenant_id"),
    runs.c.run_id == bindparam("run_id"),
    sessions.c.session_id == bindparam("session_id"),
    owned_by(bindparam("tenant_id"), bindparam("user_id")),
)
_OF_SESSION = and_(sessions.c.tenant_id == runs.c.tenant_id, sessions.c.session_id == runs.c.session_id)
_SESSION_OF_RUN = (
    select(sessions.c.name, sessions.c.last_turn_number, turns.c.turn_number)
    .select_from(runs)
    .join(sessions, _OF_SESSION)
    .outerjoin(
        turns,
        and_(turns.c.tenant_id == runs.c.tenant_id, turns.c.run_id == runs.c.run_id, turns.c.run_turn == runs.c.turn),
    )
    .where(*_RUN_PARAMETERS)
)
_AGENT_OF_RUN = (
    select(
        runs.c.agent_id,
        runs.c.variant_id,
        runs.c.revision_id,
        runs.c.version,
        runs.c.is_draft,
        agents.c.agent_id.label("standing_agent_id"),
        agents.c.name,
        agents.c.slug,
        variants.c.slug.label("variant_slug"),
    )
    .select_from(runs)
    .join(sessions, _OF_SESSION)
    .outerjoin(
        agents,
        and_(
            agents.c.tenant_id == runs.c.tenant_id, agents.c.agent_id == runs.c.agent_id, agents.c.delete_time.is_(None)
        ),
    )
    .outerjoin(variants, and_(variants.c.tenant_id == runs.c.tenant_id, variants.c.variant_id == runs.c.variant_id))
    .where(*_RUN_PARAMETERS)
)


def session_of_run(connection: Connection, context: RequestContext) -> AnyRow | None:
    """The name of the session of the token's run, how many turns of it have begun, and the number of the run's own."""
    return connection.execute(_SESSION_OF_RUN, _run_parameters(context)).one_or_none()


def agent_of_run(connection: Connection, context: RequestContext) -> AnyRow | None:
    """What the token's run executes, with the names of its agent as long as that stands."""
    return connection.execute(_AGENT_OF_RUN, _run_parameters(context)).one_or_none()


def find_session(connection: Connection, context: RequestContext, session_id: str) -> AnyRow | None:
    """The session's name and how many turns of it have begun."""
    return connection.execute(
        select(sessions.c.name, sessions.c.last_turn_number).where(
            visible(context), sessions.c.session_id == session_id
        )
    ).one_or_none()


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


def find_agent_names(connection: Connection, tenant_id: str, agent_id: str, variant_id: str) -> AnyRow | None:
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


def _run_parameters(context: RequestContext) -> dict[str, str]:
    claims = context.require_run()
    return {
        "tenant_id": context.tenant_id,
        "user_id": context.user_id,
        "session_id": claims.session_id,
        "run_id": claims.run_id,
    }
