"""AgentService: translates; decides nothing."""

from sqlalchemy import Connection
from turnkeeper.v1 import agent_pb2, reference_pb2
from turnkeeper.v1.agent_service_pb2 import (
    CommitRevisionRequest,
    CommitRevisionResponse,
    CreateAgentRequest,
    CreateAgentResponse,
    CreateVariantRequest,
    CreateVariantResponse,
    GetAgentRequest,
    GetAgentResponse,
    GetRevisionRequest,
    GetRevisionResponse,
    ListAgentsRequest,
    ListAgentsResponse,
    ListVariantsRequest,
    ListVariantsResponse,
    UpdateAgentRequest,
    UpdateAgentResponse,
)
from turnkeeper.wire.context import Call

from session_service.agents import logic, store
from session_service.agents.model import Agent, Family, Level, Reference, Revision, Variant
from session_service.pages import PageTokens
from session_service.requests import answer_once
from session_service.sessions.model import Rename
from session_service.sessions.rpc import name_source_proto
from session_service.storage.write import Storage
from session_service.times import timestamp
from session_service.turns.tool_write import answered


class AgentServicer:
    """Creates and reads agents, and commits their configs."""

    def __init__(self, storage: Storage, pages: PageTokens) -> None:
        self._storage, self._pages = storage, pages

    async def CreateAgent(self, request: CreateAgentRequest, call: Call) -> CreateAgentResponse:
        """SPEC 8.1."""

        def change(connection: Connection) -> CreateAgentResponse:
            def make() -> CreateAgentResponse:
                agent = logic.create_agent(connection, call.context, request.slug, request.name, request.automatic_name)
                return CreateAgentResponse(agent=agent_proto(agent))

            return answer_once(connection, call.context, request, CreateAgentResponse, make)

        return await self._storage.write(call.context.tenant_id, change)

    async def GetAgent(self, request: GetAgentRequest, call: Call) -> GetAgentResponse:
        """SPEC 8.1."""
        agent = await self._storage.read(
            call.context.tenant_id, lambda connection: logic.get_agent(connection, call.context, request.agent_id)
        )
        return GetAgentResponse(agent=agent_proto(agent))

    async def ListAgents(self, request: ListAgentsRequest, call: Call) -> ListAgentsResponse:
        """SPEC 11.3."""
        tenant_id = call.context.tenant_id
        page = self._pages.open(call.context, request, int, str)
        found = await self._storage.read(
            tenant_id, lambda connection: store.read_agents(connection, tenant_id, page.after, page.limit + 1)
        )
        shown, token = page.close(found, lambda agent: (agent.create_time, agent.agent_id))
        return ListAgentsResponse(agents=map(agent_proto, shown), next_page_token=token)

    async def UpdateAgent(self, request: UpdateAgentRequest, call: Call) -> UpdateAgentResponse:
        """SPEC 8.6, 8.7."""
        rename = Rename(request.name, request.automatic_name, request.tool_call_id)
        agent, result = answered(
            await self._storage.write(
                call.context.tenant_id,
                lambda connection: logic.rename_agent(connection, call.context, request.agent_id, rename),
            )
        )
        return UpdateAgentResponse(agent=agent_proto(agent), tool_result=result)

    async def CreateVariant(self, request: CreateVariantRequest, call: Call) -> CreateVariantResponse:
        """SPEC 8.1."""

        def change(connection: Connection) -> CreateVariantResponse:
            def make() -> CreateVariantResponse:
                variant = logic.create_variant(connection, call.context, request.agent_id, request.slug)
                return CreateVariantResponse(variant=variant_proto(variant))

            return answer_once(connection, call.context, request, CreateVariantResponse, make)

        return await self._storage.write(call.context.tenant_id, change)

    async def ListVariants(self, request: ListVariantsRequest, call: Call) -> ListVariantsResponse:
        """SPEC 11.3."""
        page = self._pages.open(call.context, request, int, str)

        def query(connection: Connection) -> list[Variant]:
            agent = logic.get_agent(connection, call.context, request.agent_id)
            return store.read_variants(connection, call.context.tenant_id, agent.agent_id, page.after, page.limit + 1)

        found = await self._storage.read(call.context.tenant_id, query)
        shown, token = page.close(found, lambda variant: (variant.create_time, variant.variant_id))
        return ListVariantsResponse(variants=map(variant_proto, shown), next_page_token=token)

    async def CommitRevision(self, request: CommitRevisionRequest, call: Call) -> CommitRevisionResponse:
        """SPEC 8.3."""
        commit = logic.Commit(
            variant_id=request.variant_id,
            base_revision_id=request.base_revision_id or None,
            config_json=request.config_json,
            message=request.message,
        )
        checked_hash = logic.check_config(request.config_json)

        def change(connection: Connection) -> CommitRevisionResponse:
            def make() -> CommitRevisionResponse:
                revision, made = logic.commit_revision(connection, call.context, commit, checked_hash)
                return CommitRevisionResponse(revision=revision_proto(revision), no_change=not made)

            return answer_once(connection, call.context, request, CommitRevisionResponse, make)

        return await self._storage.write(call.context.tenant_id, change)

    async def GetRevision(self, request: GetRevisionRequest, call: Call) -> GetRevisionResponse:
        """SPEC 8.1."""
        revision = await self._storage.read(
            call.context.tenant_id,
            lambda connection: logic.get_revision(connection, call.context, request.revision_id),
        )
        return GetRevisionResponse(revision=revision_proto(revision))


def reference_of(reference: reference_pb2.Reference) -> Reference:
    """A reference as the resolver takes it."""
    return Reference(
        family=Family(reference_pb2.ReferenceFamily.Name(reference.family).removeprefix("REFERENCE_FAMILY_")),
        level=Level(reference_pb2.ReferenceLevel.Name(reference.level).removeprefix("REFERENCE_LEVEL_")),
        id=reference.id if reference.HasField("id") else None,
        slug=reference.slug if reference.HasField("slug") else None,
        version=reference.version or None,
    )


def agent_proto(agent: Agent) -> agent_pb2.Agent:
    """An agent as callers see it."""
    return agent_pb2.Agent(
        agent_id=agent.agent_id,
        slug=agent.slug,
        name=agent.name or "",
        name_source=name_source_proto(agent.name_source),
        default_variant_id=agent.default_variant_id,
        create_time=timestamp(agent.create_time),
        update_time=timestamp(agent.update_time),
    )


def variant_proto(variant: Variant) -> agent_pb2.Variant:
    """A variant as callers see it."""
    return agent_pb2.Variant(
        variant_id=variant.variant_id,
        agent_id=variant.agent_id,
        slug=variant.slug,
        head_revision_id=variant.head_revision_id or "",
        create_time=timestamp(variant.create_time),
    )


def revision_proto(revision: Revision) -> agent_pb2.Revision:
    """A revision as callers see it."""
    return agent_pb2.Revision(
        revision_id=revision.revision_id,
        variant_id=revision.variant_id,
        agent_id=revision.agent_id,
        version=revision.version,
        config_json=revision.config_json,
        message=revision.message,
        author_user_id=revision.author_user_id,
        create_time=timestamp(revision.create_time),
    )
