"""Reads facts and run context, each half under a savepoint of its own: one failing costs only itself (SPEC 6.4)."""

from collections.abc import Callable
from typing import TypeVar

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import Refused, not_found

from session_service.agents.targets import resolve
from session_service.facts import store
from session_service.facts.model import (
    AgentHalf,
    DirectTurn,
    Known,
    Name,
    NoName,
    Outcome,
    Reading,
    SessionFact,
    TurnContext,
    Workflow,
)
from session_service.runs.model import AnyRow
from session_service.runs.pinning import Pinned, pin
from session_service.storage.write import Storage

T = TypeVar("T")
NO_AGENT = AgentHalf(NoName.UNKNOWN, None)
_log = structlog.get_logger(__name__)


async def resolve_run_turn(storage: Storage, context: RequestContext) -> TurnContext:
    """The facts and the run context of a run's turn: session and target come from the run's row."""

    claims = context.require_run()

    def query(connection: Connection) -> TurnContext:
        session, session_reading = _half(connection, lambda: _session_of_run(connection, context))
        agent, agent_reading = _half(connection, lambda: _agent_of_run(connection, context))
        if session_reading is agent_reading is Reading.MISSING:
            raise not_found("run")
        outcome = _outcome(session_reading, agent_reading)
        return TurnContext(agent or NO_AGENT, session, claims.session_id, claims.run_id, outcome)

    return await storage.read(context.tenant_id, query)


async def resolve_direct_turn(storage: Storage, context: RequestContext, turn: DirectTurn) -> TurnContext:
    """The same for a direct turn, as far as the user's scopes and ownership allow."""

    def query(connection: Connection) -> TurnContext:
        session, session_reading = _half(connection, lambda: _session_of_direct(connection, context, turn))
        half, agent_reading = _half(connection, lambda: _agent_of_direct(connection, context, turn))
        agent, ambiguous = half or (NO_AGENT, False)
        outcome = Outcome.AMBIGUOUS if ambiguous else _outcome(session_reading, agent_reading)
        session_id = turn.session_id if session is not None else None
        return TurnContext(agent, session, session_id, None, outcome)

    return await storage.read(context.tenant_id, query)


def name_of(text: str | None) -> Name:
    """A stored name as a fact: what is blank is no name (SPEC 6.2)."""
    return Known(text) if text is not None and text.strip() else NoName.UNNAMED


class Denied(Exception):
    """The caller may not read this half."""


def _half(connection: Connection, read: Callable[[], T]) -> tuple[T | None, Reading]:
    try:
        with connection.begin_nested():
            return read(), Reading.READ
    except Denied:
        return None, Reading.DENIED
    except Refused:
        return None, Reading.MISSING
    except DBAPIError as error:
        _log.warning("a half of the facts could not be read", exc_info=error)
        return None, Reading.FAILED


def _session_of_run(connection: Connection, context: RequestContext) -> SessionFact:
    session = store.session_of_run(connection, context)
    if session is None:
        raise not_found("run")
    begun, number = session.last_turn_number, session.turn_number
    return SessionFact(name_of(session.name), begun == 0 if number is None else number == 1)


def _agent_of_run(connection: Connection, context: RequestContext) -> AgentHalf:
    run = store.agent_of_run(connection, context)
    if run is None:
        raise not_found("run")
    if run.agent_id is None:
        return NO_AGENT
    pinned = Pinned(run.agent_id, run.variant_id, run.revision_id, run.version, run.is_draft)
    return _agent_half(pinned, run if run.standing_agent_id is not None else None)


def _session_of_direct(connection: Connection, context: RequestContext, turn: DirectTurn) -> SessionFact:
    if turn.session_id is None:
        return SessionFact(NoName.UNNAMED, first_turn=True)
    if "sessions:read" not in context.scopes:
        raise Denied
    session = store.find_session(connection, context, turn.session_id)
    if session is None or not store.direct_turn_begun(connection, context.tenant_id, turn.session_id, turn.turn_number):
        raise not_found("session")
    return SessionFact(name_of(session.name), turn.turn_number == 1)


def _agent_of_direct(connection: Connection, context: RequestContext, turn: DirectTurn) -> tuple[AgentHalf, bool]:
    """The agent's half, and whether the references name more than one agent."""
    if not turn.references:
        return NO_AGENT, False
    if "agents:read" not in context.scopes:
        raise Denied
    resolution = resolve(connection, context.tenant_id, turn.references)
    if resolution.target is None:
        return NO_AGENT, resolution.ambiguous
    pinned = pin(turn.config_json, resolution)
    target = resolution.target
    names = store.find_agent_names(connection, context.tenant_id, target.agent_id, target.variant_id)
    return _agent_half(pinned, names), False


def _agent_half(pinned: Pinned, names: AnyRow | None) -> AgentHalf:
    """What is executed, with its `names`; of an agent that was deleted meanwhile only the ids are left."""
    workflow = Workflow(
        agent_id=pinned.agent_id or "",
        agent_slug="" if names is None else names.slug,
        variant_id=pinned.variant_id or "",
        variant_slug="" if names is None else names.variant_slug,
        revision_id=pinned.revision_id,
        version=pinned.version,
        is_draft=pinned.is_draft,
    )
    return AgentHalf(NoName.UNKNOWN if names is None else name_of(names.name), workflow)


def _outcome(*readings: Reading) -> Outcome:
    if all(reading is Reading.READ for reading in readings):
        return Outcome.OK
    if any(reading is Reading.READ for reading in readings):
        return Outcome.PARTIAL
    return Outcome.DENIED if all(reading is Reading.DENIED for reading in readings) else Outcome.FAILED
