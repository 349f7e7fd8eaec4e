"""Agents, variants, revisions."""

import asyncio
import json
import uuid

import grpc
import pytest
from turnkeeper.v1 import agent_pb2, session_pb2
from turnkeeper.v1.agent_service_pb2 import (
    CommitRevisionRequest,
    CommitRevisionResponse,
    CreateAgentRequest,
    CreateVariantRequest,
    GetAgentRequest,
    GetRevisionRequest,
    ListAgentsRequest,
    ListVariantsRequest,
    UpdateAgentRequest,
)

from tests.fixtures.client import Client
from tests.fixtures.journeys import new_agent, refused, scripted
from tests.fixtures.pair import Pair


async def commit(
    client: Client, variant_id: str, config: str, base: str = "", said: str = ""
) -> CommitRevisionResponse:
    request = CommitRevisionRequest(variant_id=variant_id, base_revision_id=base, config_json=config, message=said)
    return await client.agents.CommitRevision(request)


async def variants(client: Client, agent_id: str) -> list[agent_pb2.Variant]:
    return list((await client.agents.ListVariants(ListVariantsRequest(agent_id=agent_id))).variants)


@pytest.mark.spec("8.1")
async def test_an_agent_has_an_empty_default_variant_and_belongs_to_its_tenant(pair: Pair) -> None:
    ada, bob, other = pair.client(), pair.client(user="bob"), pair.client(tenant="globex")
    agent = (await ada.agents.CreateAgent(CreateAgentRequest(slug="atlas", name=" Atlas "))).agent

    assert (agent.slug, agent.name, agent.name_source) == ("atlas", "Atlas", session_pb2.NAME_SOURCE_USER)
    assert (await bob.agents.GetAgent(GetAgentRequest(agent_id=agent.agent_id))).agent == agent
    [default] = await variants(bob, agent.agent_id)
    assert (default.variant_id, default.slug, default.head_revision_id) == (agent.default_variant_id, "default", "")
    with refused("RESOURCE_NOT_FOUND"):
        await other.agents.GetAgent(GetAgentRequest(agent_id=agent.agent_id))
    with refused("RESOURCE_NOT_FOUND"):
        await variants(other, agent.agent_id)


@pytest.mark.spec("8.1")
async def test_slugs_are_unique_where_they_name(pair: Pair) -> None:
    ada, other = pair.client(), pair.client(tenant="globex")
    agent_id, _ = await new_agent(ada, slug="atlas")
    second_id, _ = await new_agent(ada)
    with refused("SLUG_TAKEN") as refusal:
        await new_agent(ada, slug="atlas")
    assert (refusal.code, refusal.detail.metadata) == (grpc.StatusCode.ALREADY_EXISTS, {"resource": "agent"})
    await new_agent(other, slug="atlas")

    await ada.agents.CreateVariant(CreateVariantRequest(agent_id=agent_id, slug="brief"))
    await ada.agents.CreateVariant(CreateVariantRequest(agent_id=second_id, slug="brief"))
    for slug in ("brief", "default"):
        with refused("SLUG_TAKEN") as refusal:
            await ada.agents.CreateVariant(CreateVariantRequest(agent_id=agent_id, slug=slug))
        assert refusal.detail.metadata == {"resource": "variant"}
    assert [variant.slug for variant in await variants(ada, agent_id)] == ["brief", "default"]
    for unknown in (str(uuid.uuid4()), (await new_agent(other))[0]):
        with refused("RESOURCE_NOT_FOUND"):
            await ada.agents.CreateVariant(CreateVariantRequest(agent_id=unknown, slug="brief"))


@pytest.mark.spec("8.7")
async def test_an_automatic_name_never_replaces_a_users(pair: Pair) -> None:
    ada = pair.client()
    agent = (await ada.agents.CreateAgent(CreateAgentRequest(name="Draft", automatic_name=True))).agent

    async def rename(name: str, automatic: bool) -> agent_pb2.Agent:
        request = UpdateAgentRequest(agent_id=agent.agent_id, name=name, automatic_name=automatic)
        request.update_mask.paths.append("name")
        return (await ada.agents.UpdateAgent(request)).agent

    assert (await rename("Draft 2", True)).name_source == session_pb2.NAME_SOURCE_AUTOMATIC
    assert (await rename("Atlas", False)).name_source == session_pb2.NAME_SOURCE_USER
    with refused("NAME_SET_BY_USER"):
        await rename("Draft 3", True)
    assert (await ada.agents.GetAgent(GetAgentRequest(agent_id=agent.agent_id))).agent.name == "Atlas"


@pytest.mark.spec("11.3")
async def test_agents_are_listed_newest_first_each_once(pair: Pair) -> None:
    ada = pair.client()
    made = [(await new_agent(ada))[0] for _ in range(5)]
    await new_agent(pair.client(tenant="globex"))
    seen: list[str] = []
    request = ListAgentsRequest(page_size=2)
    while True:
        page = await ada.agents.ListAgents(request)
        seen += [agent.agent_id for agent in page.agents]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert sorted(seen) == sorted(made)


@pytest.mark.spec("8.1", "8.3")
async def test_commits_make_a_line_of_versions(pair: Pair) -> None:
    ada = pair.client()
    agent_id, variant_id = await new_agent(ada)
    text = json.dumps(json.loads(scripted({"text": "one"})), indent=3)

    first = await commit(ada, variant_id, text, said="the first")
    second = await commit(ada, variant_id, scripted({"text": "two"}), base=first.revision.revision_id)

    assert (first.revision.version, second.revision.version) == ("0", "1")
    assert (first.no_change, second.no_change) == (False, False)
    assert (first.revision.config_json, first.revision.message) == (text, "the first")
    assert (first.revision.agent_id, first.revision.variant_id) == (agent_id, variant_id)
    assert first.revision.author_user_id == "ada"
    for made in (first, second):
        read = await ada.agents.GetRevision(GetRevisionRequest(revision_id=made.revision.revision_id))
        assert read.revision == made.revision
    [variant] = await variants(ada, agent_id)
    assert variant.head_revision_id == second.revision.revision_id
    with refused("RESOURCE_NOT_FOUND"):
        await pair.client(tenant="globex").agents.GetRevision(
            GetRevisionRequest(revision_id=first.revision.revision_id)
        )


@pytest.mark.spec("8.3")
async def test_equal_content_makes_no_revision(pair: Pair) -> None:
    ada = pair.client()
    _, variant_id = await new_agent(ada)
    first = await commit(ada, variant_id, scripted({"wait_seconds": 1}))
    again = await commit(
        ada,
        variant_id,
        '{"script": [ {"wait_seconds": 1.0} ], "harness": "scripted", "schema_version": 1}',
        base=first.revision.revision_id,
    )
    assert again.no_change
    assert again.revision == first.revision


@pytest.mark.spec("8.3")
async def test_another_head_is_a_conflict_also_with_equal_content(pair: Pair) -> None:
    ada = pair.client()
    _, variant_id = await new_agent(ada)
    first = await commit(ada, variant_id, scripted({"text": "one"}))
    second = await commit(ada, variant_id, scripted({"text": "two"}), base=first.revision.revision_id)
    for base in (first.revision.revision_id, ""):
        for text in ("two", "three"):
            with refused("REVISION_CONFLICT") as refusal:
                await commit(ada, variant_id, scripted({"text": text}), base=base)
            assert refusal.code is grpc.StatusCode.ABORTED
            assert refusal.detail.metadata == {"head_revision_id": second.revision.revision_id}


@pytest.mark.spec("8.3")
async def test_of_commits_on_one_base_exactly_one_is_taken(pair: Pair) -> None:
    """CASES 26."""
    ada = pair.client()
    _, variant_id = await new_agent(ada)
    base = (await commit(ada, variant_id, scripted({"text": "base"}))).revision.revision_id

    async def attempt(number: int) -> str:
        try:
            made = await commit(ada, variant_id, scripted({"text": f"try {number}"}), base=base)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return made.revision.version

    assert sorted(await asyncio.gather(*map(attempt, range(8)))) == ["1"] + ["ABORTED"] * 7


@pytest.mark.spec("1.7", "8.3")
async def test_a_base_must_be_the_variants_own(pair: Pair) -> None:
    """CASES 16."""
    ada, other = pair.client(), pair.client(tenant="globex")
    _, variant_id = await new_agent(ada)
    _, sibling = await new_agent(ada)
    _, foreign = await new_agent(other)
    await commit(ada, variant_id, scripted({"text": "mine"}))
    bases = [
        (await commit(ada, sibling, scripted({"text": "x"}))).revision.revision_id,
        (await commit(other, foreign, scripted({"text": "x"}))).revision.revision_id,
        str(uuid.uuid4()),
    ]
    for base in bases:
        with refused("RESOURCE_NOT_FOUND") as refusal:
            await commit(ada, variant_id, scripted({"text": "new"}), base=base)
        assert refusal.detail.metadata == {"resource": "revision"}
    with refused("RESOURCE_NOT_FOUND"):
        await commit(ada, foreign, scripted({"text": "new"}))


@pytest.mark.spec("2.5", "11.1")
@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        '{"schema_version": 1, "harness": "scripted", "script": [], "surprise": 1}',
        '{"schema_version": 1, "schema_version": 1, "harness": "scripted", "script": []}',
        '{"schema_version": 1, "harness": "scripted", "script": [{"wait_seconds": NaN}]}',
    ],
)
async def test_a_config_that_is_none_is_not_committed(pair: Pair, config: str) -> None:
    ada = pair.client()
    agent_id, variant_id = await new_agent(ada)
    with refused("CONFIG_INVALID") as refusal:
        await commit(ada, variant_id, config)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert all(each.field.startswith("config_json") for each in refusal.detail.fields)
    assert (await variants(ada, agent_id))[0].head_revision_id == ""
