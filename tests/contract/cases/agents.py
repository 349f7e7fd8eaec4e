"""The cases of AgentService."""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message
from turnkeeper.v1 import agent_service_pb2 as agents

from tests.contract.cases.case import DRAFT, NAME, UNIMPLEMENTED, Case
from tests.contract.worlds import World
from tests.fixtures.journeys import reference


def _agent(method: str, scope: str, make: Callable[[World], Message], required: str = "", **more: Any) -> Case:
    return Case(f"AgentService/{method}", f"agents:{scope}", make, required, **more)


def update_agent(world: World) -> Message:
    return agents.UpdateAgentRequest(agent_id=world.agent_id, name="New", update_mask=NAME)


def commit(world: World) -> Message:
    return agents.CommitRevisionRequest(
        variant_id=world.variant_id,
        base_revision_id=world.revision_id,
        config_json=DRAFT,
        message="Better",
        request_id=f"commit-{world.mark}",
    )


def patch(world: World) -> Message:
    return agents.PatchRevisionRequest(
        variant_id=world.variant_id,
        base_revision_id=world.revision_id,
        patch_json='{"instructions": "Be brief."}',
        remove=["limits"],
        message="Better",
        request_id=f"patch-{world.mark}",
    )


PATCHED = "variant_id base_revision_id"

AGENTS = (
    _agent(
        "CreateAgent",
        "write",
        lambda world: agents.CreateAgentRequest(
            slug=f"new-{world.mark}", name="Blue", request_id=f"create-{world.mark}"
        ),
        changes=True,
    ),
    _agent("GetAgent", "read", lambda world: agents.GetAgentRequest(agent_id=world.agent_id), "agent_id"),
    _agent("ListAgents", "read", lambda world: agents.ListAgentsRequest(page_size=200)),
    _agent("UpdateAgent", "write", update_agent, "agent_id update_mask", changes=True),
    _agent(
        "DeleteAgent",
        "write",
        lambda world: agents.DeleteAgentRequest(agent_id=world.agent_id),
        "agent_id",
        answer=UNIMPLEMENTED,
    ),
    _agent(
        "CreateVariant",
        "write",
        lambda world: agents.CreateVariantRequest(
            agent_id=world.agent_id, slug="third", request_id=f"create-{world.mark}"
        ),
        "agent_id slug",
        changes=True,
    ),
    _agent(
        "ListVariants",
        "read",
        lambda world: agents.ListVariantsRequest(agent_id=world.agent_id, page_size=200),
        "agent_id",
    ),
    _agent("CommitRevision", "write", commit, "variant_id config_json", changes=True),
    _agent("PatchRevision", "write", patch, PATCHED, answer=UNIMPLEMENTED),
    _agent(
        "GetRevision", "read", lambda world: agents.GetRevisionRequest(revision_id=world.revision_id), "revision_id"
    ),
    _agent(
        "ListRevisions",
        "read",
        lambda world: agents.ListRevisionsRequest(variant_id=world.variant_id, page_size=200),
        "variant_id",
        answer=UNIMPLEMENTED,
    ),
    _agent(
        "CompareConfig",
        "read",
        lambda world: agents.CompareConfigRequest(base=reference(world.revision_id), config_json=DRAFT),
        "base base.name config_json",
        answer=UNIMPLEMENTED,
    ),
)
