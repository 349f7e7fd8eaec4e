"""What one caller owns: a world of a session, an agent and a run. Worlds of one mark have equal names and keys."""

import re
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from sqlalchemy import Connection, select
from turnkeeper.v1.agent_service_pb2 import CommitRevisionRequest, CreateAgentRequest, CreateVariantRequest
from turnkeeper.v1.session_pb2 import MESSAGE_ROLE_USER
from turnkeeper.v1.session_service_pb2 import AppendMessageRequest, CreateSessionRequest
from turnkeeper.v1.turn_service_pb2 import BeginToolCallRequest, BeginTurnRequest
from turnkeeper.wire.context import TokenKind

from session_service.identity.keys import KeyRing, load_keys
from session_service.storage.schema import metadata
from tests.contract.rpcs import Outcome, Site
from tests.fixtures.issuer import ALL_SCOPES, Issuer
from tests.fixtures.journeys import ended, reference, scripted, start, until
from tests.fixtures.pair import Pair, running_pair

# A live run's lease is renewed whoever calls.
_RENEWED = {("runs", "lease_expire_time")}
_UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Snapshot = Mapping[str, Counter[tuple[Any, ...]]]


def _random() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True)
class World:
    """The ids of what a caller made; by default ids that name nothing."""

    mark: str
    """Part of every name, slug and key in it."""
    tenant: str = "acme"
    user: str = "ada"
    session_id: str = field(default_factory=_random)
    run_id: str = field(default_factory=_random)
    agent_id: str = field(default_factory=_random)
    variant_id: str = field(default_factory=_random)
    revision_id: str = field(default_factory=_random)
    interaction_id: str = field(default_factory=_random)
    share_id: str = field(default_factory=_random)
    direct_turn: int = 2
    """The number of a direct turn of the session; its run's turn is the first."""

    @property
    def slug(self) -> str:
        """The agent's."""
        return f"agent-{self.mark}"

    @property
    def named(self) -> Mapping[str, str]:
        """Its ids by the name of their field here."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name.endswith("_id")}


class Stage:
    """A running pair, and the worlds of its callers."""

    def __init__(self, pair: Pair, keys: KeyRing) -> None:
        self.pair = pair
        self.site = Site(pair.session_address, pair.runner_address)
        self._issuer, self._keys = pair.issuer, keys
        self._worlds: dict[tuple[str, str, str, bool], World] = {}
        self._over: set[str] = set()
        self._count = 0

    def next_mark(self) -> str:
        """A mark that no world has."""
        self._count += 1
        return f"row-{self._count}"

    def token(self, kind: TokenKind, world: World, scopes: Collection[str] = ALL_SCOPES, tenant: str = "") -> str:
        """The token of the world's owner, of its run, or of the session service; `tenant` replaces the world's."""
        tenant = tenant or world.tenant
        if kind is TokenKind.SERVICE:
            return self._keys.service_token(tenant)
        if kind is TokenKind.USER:
            return self._issuer.token(tenant, world.user, sorted(scopes))
        return self._keys.run_token(
            tenant_id=tenant,
            user_id=world.user,
            roles=(),
            scopes=scopes,
            session_id=world.session_id,
            run_id=world.run_id,
            attempt=1,
            expire_time=int(time.time()) + 600,
        )

    async def world(self, mark: str, tenant: str = "acme", user: str = "ada", *, live: bool = False) -> World:
        """The world of this mark, made when it is first asked for. In a live one the run waits at a gate."""
        key = (f"{mark}-live" if live else mark, tenant, user, live)
        if key not in self._worlds:
            self._worlds[key] = await self._make(*key)
        return self._worlds[key]

    async def finish(self, *worlds: World) -> None:
        """Lets the runs of these worlds go on; from now on snapshots leave them out."""
        for world in worlds:
            self.leave_out(world.named.values())
            self.pair.gates.open(self._gate(world))

    def leave_out(self, ids: Collection[str]) -> None:
        """Snapshots show no rows with these ids from now on."""
        self._over.update(ids)

    async def snapshot(self) -> Snapshot:
        """Every row of every table."""

        def query(connection: Connection) -> Snapshot:
            found = {}
            for table in metadata.sorted_tables:
                columns = [column for column in table.columns if (table.name, column.name) not in _RENEWED]
                rows = (tuple(row) for row in connection.execute(select(*columns)))
                found[table.name] = Counter(row for row in rows if self._over.isdisjoint(row))
            return found

        return await self.pair.session.storage.read("", query)

    def _gate(self, world: World) -> str:
        return f"{world.tenant}-{world.user}-{world.mark}"

    async def _make(self, mark: str, tenant: str, user: str, live: bool) -> World:
        client = self.pair.client(tenant, user)
        # Names by a program, so that a run's own token may change them.
        session = CreateSessionRequest(name=f"Name {mark}", automatic_name=True, request_id=f"made-{mark}")
        session_id = (await client.sessions.CreateSession(session)).session.session_id
        append = AppendMessageRequest(
            session_id=session_id, role=MESSAGE_ROLE_USER, text="Earlier.", request_id=f"made-{mark}"
        )
        await client.sessions.AppendMessage(append)
        create = CreateAgentRequest(
            slug=f"agent-{mark}", name=f"Name {mark}", automatic_name=True, request_id=f"made-{mark}"
        )
        agent = (await client.agents.CreateAgent(create)).agent
        # A second variant, so that every list has more than one page.
        variant = CreateVariantRequest(agent_id=agent.agent_id, slug="other", request_id=f"made-{mark}")
        await client.agents.CreateVariant(variant)
        gate = f"{tenant}-{user}-{mark}"
        config = scripted({"text": "Good day."}, *([{"wait_gate": gate}] if live else []))
        commit = CommitRevisionRequest(
            variant_id=agent.default_variant_id, config_json=config, request_id=f"made-{mark}"
        )
        revision = (await client.agents.CommitRevision(commit)).revision
        run = await start(
            client,
            session_id,
            references=[reference(agent.agent_id)],
            idempotency_key=f"made-{mark}",
            labels={"mark": mark},
        )
        world = World(
            mark, tenant, user, session_id, run.run_id, agent.agent_id, agent.default_variant_id, revision.revision_id
        )
        if live:
            await self.pair.gates.reached(gate)
            await until(client, run.run_id, "text_delta")
        else:
            await ended(client, run.run_id)
        direct = BeginTurnRequest(session_id=session_id, harness="scripted")
        assert (await client.turns.BeginTurn(direct)).turn_number == world.direct_turn
        if not live:
            return world
        runner = self.pair.client(token=self.token(TokenKind.RUN, world))
        begun = BeginToolCallRequest(call_id="1.7.0", tool_name="lookup", arguments_json="{}", side_effect=True)
        await runner.turns.BeginToolCall(begun)
        return world


def ids_in(outcome: Outcome) -> set[str]:
    """Every UUID that the responses name."""
    return {found.decode() for each in outcome.responses for found in _UUID.findall(each.SerializeToString())}


def changed(before: Snapshot, after: Snapshot, but: Collection[str] = ()) -> dict[str, list[tuple[Any, ...]]]:
    """The rows that went or came, per table; empty when nothing was stored, changed or removed.

    Rows with one of the ids in `but` are left out.
    """
    found = {}
    for table, rows in before.items():
        differing = [*(rows - after[table]).elements(), *(after[table] - rows).elements()]
        if strange := [row for row in differing if set(but).isdisjoint(row)]:
            found[table] = strange
    return found


@asynccontextmanager
async def staged(database_url: str, issuer: Issuer) -> AsyncIterator[Stage]:
    """A stage on this database."""
    async with running_pair(database_url, issuer) as pair:
        stage = Stage(pair, await load_keys(pair.session.storage))
        try:
            yield stage
        finally:
            await stage.site.close()
