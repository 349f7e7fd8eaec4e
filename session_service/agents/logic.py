"""What agents, variants and revisions may do (SPEC 8). Each function runs in its caller's transaction."""

import uuid
from dataclasses import dataclass

from sqlalchemy import Connection
from turnkeeper.v1 import error_reason_pb2 as reasons
from turnkeeper.wire.builtins import RENAME_AGENT
from turnkeeper.wire.configs import parse_config
from turnkeeper.wire.context import RequestContext
from turnkeeper.wire.errors import Refused, not_found

from session_service.agents import store
from session_service.agents.model import Agent, Revision, Variant
from session_service.events import bodies
from session_service.runs.fingerprint import config_hash
from session_service.runs.model import RunKey, RunState
from session_service.runs.store import advance
from session_service.sessions.logic import name_source, require_tool_rename
from session_service.sessions.model import Rename
from session_service.turns.hold import hold_current
from session_service.turns.tool_write import ToolWrite, finish, recorded_result, refuse


def create_agent(connection: Connection, context: RequestContext, slug: str, name: str, automatic: bool) -> Agent:
    """A new agent with an empty default variant. A slug that is in use: SLUG_TAKEN; an empty one is made."""
    source = name_source(context, automatic) if name else None
    agent_id = store.insert_agent(connection, context.tenant_id, slug or f"agent-{uuid.uuid4()}", name or None, source)
    if agent_id is None:
        raise Refused(reasons.ERROR_REASON_SLUG_TAKEN, metadata={"resource": "agent"})
    return get_agent(connection, context, agent_id)


def get_agent(connection: Connection, context: RequestContext, agent_id: str) -> Agent:
    """The tenant's agent of this id."""
    agent = store.find_agent(connection, context.tenant_id, agent_id=agent_id)
    if agent is None:
        raise not_found("agent")
    return agent


def rename_agent(
    connection: Connection, context: RequestContext, agent_id: str, rename: Rename
) -> tuple[Agent, str] | Refused:
    """Renames the agent; an automatic name never replaces a user's (SPEC 8.7).

    Answers also what the tool call has as its result, if the rename names one.
    """
    require_tool_rename(context, rename)
    run = None if context.run is None else hold_current(connection, context)
    if run is not None and run.agent_id != agent_id:
        raise not_found("agent")
    get_agent(connection, context, agent_id)
    write = ToolWrite(RENAME_AGENT, f"agent {agent_id}", rename.tool_call_id)
    result = None if run is None else recorded_result(connection, run, write)
    if result is None:
        source = name_source(context, rename.automatic)
        if not store.set_name(connection, context.tenant_id, agent_id, rename.name or None, source):
            refusal = Refused(reasons.ERROR_REASON_NAME_SET_BY_USER)
            return refusal if run is None else refuse(connection, context, run, write, refusal)
        result = "" if run is None else finish(connection, context, run, write, rename.result)
    return get_agent(connection, context, agent_id), result


def create_variant(connection: Connection, context: RequestContext, agent_id: str, slug: str) -> Variant:
    """A new, empty variant of the agent. A slug that the agent has already: SLUG_TAKEN."""
    if not store.lock_agent(connection, context.tenant_id, agent_id):
        raise not_found("agent")
    variant_id = store.insert_variant(connection, context.tenant_id, agent_id, slug)
    variant = variant_id and store.find_variant(connection, context.tenant_id, variant_id)
    if not variant:
        raise Refused(reasons.ERROR_REASON_SLUG_TAKEN, metadata={"resource": "variant"})
    return variant


def get_revision(connection: Connection, context: RequestContext, revision_id: str) -> Revision:
    """The tenant's revision of this id."""
    revision = store.find_revision(connection, context.tenant_id, revision_id)
    if revision is None:
        raise not_found("revision")
    return revision


@dataclass(frozen=True, slots=True)
class Commit:
    """A whole config, to go on top of the head that its author has seen (None: before the first commit)."""

    variant_id: str
    base_revision_id: str | None
    config_json: str
    message: str


def check_config(config_json: str) -> str:
    """The hash of a valid config's canonical form; CONFIG_INVALID for another. Needs no transaction."""
    parse_config(config_json)
    return config_hash(config_json)


def commit_revision(
    connection: Connection, context: RequestContext, commit: Commit, checked_hash: str
) -> tuple[Revision, bool]:
    """The head after the commit, and whether a revision was made (SPEC 8.3).

    Another head than the base is a conflict, even when the content would be equal.
    """
    own = _own_agent(connection, context)
    variant = store.lock_variant(connection, context.tenant_id, commit.variant_id)
    if variant is None or own not in {None, variant.agent_id}:
        raise not_found("variant")
    if commit.base_revision_id != variant.head_revision_id:
        _require_own_base(connection, context, commit)
        raise Refused(
            reasons.ERROR_REASON_REVISION_CONFLICT, metadata={"head_revision_id": variant.head_revision_id or ""}
        )
    if variant.head_revision_id is not None:
        head = get_revision(connection, context, variant.head_revision_id)
        if head.config_hash == checked_hash:
            return head, False
    revision_id = store.insert_revision(
        connection,
        context.tenant_id,
        variant,
        config_json=commit.config_json,
        config_hash=checked_hash,
        message=commit.message,
        author_user_id=context.user_id,
    )
    revision = get_revision(connection, context, revision_id)
    if context.run is not None:
        advance(
            connection,
            RunKey(context.tenant_id, context.run.run_id),
            [bodies.revision_committed(revision.variant_id, revision.revision_id, revision.version)],
            expected={RunState.RUNNING},
            attempt=context.run.attempt,
        )
    return revision, True


def _require_own_base(connection: Connection, context: RequestContext, commit: Commit) -> None:
    """A base that is none of this variant's revisions is no conflict: the caller cannot have seen it as a head."""
    if commit.base_revision_id is None:
        return
    base = get_revision(connection, context, commit.base_revision_id)
    if base.variant_id != commit.variant_id:
        raise not_found("revision")


def _own_agent(connection: Connection, context: RequestContext) -> str | None:
    """The agent that a run's token may change, its run locked; None for a user, who may change any of the tenant's.

    A run's token does so for as long as its attempt is the current one (SPEC 1.2).
    """
    if context.run is None:
        return None
    agent_id: str | None = hold_current(connection, context).agent_id
    if agent_id is None:
        raise not_found("agent")
    return agent_id
