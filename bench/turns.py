"""A turn of each kind on a named session and a named agent, as far as its runner has it when it asks for facts."""

import json
import time
import uuid

import grpc
from turnkeeper.v1 import (
    agent_service_pb2,
    agent_service_pb2_grpc,
    reference_pb2,
    run_service_pb2,
    run_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
)
from turnkeeper.v1.runner_service_pb2 import TurnStart
from turnkeeper.wire.context import Call, Credential, RequestContext, RunClaims, TokenKind

from bench.service import Measured
from runner_service.settings import PROMPT_BYTES
from runner_service.turns.direct import DirectDoor
from runner_service.turns.door import SessionDoor
from runner_service.turns.stop import StopSignal
from session_service.identity.keys import load_keys
from session_service.storage.engine import open_storage

CONFIG = json.dumps({"schema_version": 1, "harness": "openai", "model": {"name": "m"}, "instructions": "Be brief."})
TOKEN_SECONDS = 3600


async def direct_turn(channel: grpc.aio.Channel, measured: Measured) -> DirectDoor:
    """A direct turn that has begun."""
    session_id, reference = await _named(channel, measured.token)
    start = TurnStart(session_id=session_id, config_json=CONFIG, references=[reference])
    door = DirectDoor(channel, Call(_caller(None), Credential(measured.token)), start, StopSignal())
    await door.begin_turn("openai", "bench")
    return door


async def run_turn(channel: grpc.aio.Channel, measured: Measured) -> SessionDoor:
    """A run's first turn. No runner is there, so its run stays in the queue; what is read is the same."""
    session_id, reference = await _named(channel, measured.token)
    runs = run_service_pb2_grpc.RunServiceStub(channel)
    request = run_service_pb2.StartRunRequest(
        session_id=session_id, idempotency_key="bench", input="Hello", references=[reference]
    )
    run = (await runs.StartRun(request, metadata=_metadata(measured.token))).run
    claims = RunClaims(session_id, run.run_id, 1)
    call = Call(_caller(claims), Credential(await _run_token(measured, claims)))
    return SessionDoor(channel, call, StopSignal(), PROMPT_BYTES)


async def _run_token(measured: Measured, claims: RunClaims) -> str:
    """The token that the dispatcher would send with the turn."""
    storage = open_storage(measured.database_url)
    try:
        keys = await load_keys(storage)
    finally:
        await storage.close()
    return keys.run_token(
        tenant_id="acme",
        user_id="ada",
        roles=(),
        scopes=(),
        session_id=claims.session_id,
        run_id=claims.run_id,
        attempt=claims.attempt,
        expire_time=int(time.time()) + TOKEN_SECONDS,
    )


async def _named(channel: grpc.aio.Channel, token: str) -> tuple[str, reference_pb2.Reference]:
    """A new session with a name, and a reference to a new agent with a name and a revision."""
    metadata = _metadata(token)
    agents = agent_service_pb2_grpc.AgentServiceStub(channel)
    sessions = session_service_pb2_grpc.SessionServiceStub(channel)
    agent = (await agents.CreateAgent(agent_service_pb2.CreateAgentRequest(name="Atlas"), metadata=metadata)).agent
    commit = agent_service_pb2.CommitRevisionRequest(variant_id=agent.default_variant_id, config_json=CONFIG)
    await agents.CommitRevision(commit, metadata=metadata)
    opened = await sessions.CreateSession(session_service_pb2.CreateSessionRequest(name="Blue"), metadata=metadata)
    reference = reference_pb2.Reference(
        family=reference_pb2.REFERENCE_FAMILY_WORKFLOW,
        level=reference_pb2.REFERENCE_LEVEL_ARTIFACT,
        id=agent.agent_id,
    )
    return opened.session.session_id, reference


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def _caller(run: RunClaims | None) -> RequestContext:
    """The runner's own view of the caller; the service takes nothing from it but the token."""
    return RequestContext(
        call_id=str(uuid.uuid4()),
        trace_id="",
        tenant_id="acme",
        user_id="ada",
        roles=(),
        scopes=frozenset(),
        locale="",
        deadline=None,
        kind=TokenKind.USER if run is None else TokenKind.RUN,
        expire_time=int(time.time()) + TOKEN_SECONDS,
        run=run,
    )
