"""References, resolved together into the one target that a run pins (SPEC 2.6), through StartRun."""

from dataclasses import dataclass

import grpc
import pytest
from turnkeeper.v1 import reference_pb2
from turnkeeper.v1.agent_service_pb2 import CommitRevisionRequest, CreateVariantRequest
from turnkeeper.v1.reference_pb2 import Reference, Target
from turnkeeper.v1.run_service_pb2 import ListRunsRequest
from turnkeeper.wire import errors

from tests.fixtures.client import Client
from tests.fixtures.journeys import messages, new_agent, new_session, refused, scripted, start
from tests.fixtures.pair import Pair

FAMILIES = {
    "app": reference_pb2.REFERENCE_FAMILY_APPLICATION,
    "flow": reference_pb2.REFERENCE_FAMILY_WORKFLOW,
    "eval": reference_pb2.REFERENCE_FAMILY_EVALUATOR,
}
LEVELS = {
    "artifact": reference_pb2.REFERENCE_LEVEL_ARTIFACT,
    "variant": reference_pb2.REFERENCE_LEVEL_VARIANT,
    "revision": reference_pb2.REFERENCE_LEVEL_REVISION,
}


@dataclass
class World:
    """Two agents: atlas with the variants default (versions 0, 1) and brief (0), and boreas with a default (0)."""

    ids: dict[str, str]

    def reference(self, text: str) -> Reference:
        """`family level name [version]`, for example "flow variant atlas/brief"; a name in quotes is a slug."""
        family, level, name, *version = text.split()
        named = {"slug": name.strip("'")} if name.startswith("'") else {"id": self.ids[name]}
        return Reference(family=FAMILIES[family], level=LEVELS[level], version="".join(version), **named)

    def target(self, text: str) -> Target:
        """`agent/variant/version`."""
        agent, variant, version = text.split("/")
        return Target(
            agent_id=self.ids[agent],
            variant_id=self.ids[f"{agent}/{variant}"],
            revision_id=self.ids[text],
            version=version,
        )


async def build(client: Client) -> World:
    ids: dict[str, str] = {}

    async def commit(variant: str, version: str, base: str = "") -> None:
        request = CommitRevisionRequest(
            variant_id=ids[variant], base_revision_id=base, config_json=scripted({"text": f"{variant}/{version}"})
        )
        ids[f"{variant}/{version}"] = (await client.agents.CommitRevision(request)).revision.revision_id

    for agent in ("atlas", "boreas"):
        ids[agent], ids[f"{agent}/default"] = await new_agent(client, slug=agent)
        await commit(f"{agent}/default", "0")
    await commit("atlas/default", "1", ids["atlas/default/0"])
    brief = CreateVariantRequest(agent_id=ids["atlas"], slug="brief")
    ids["atlas/brief"] = (await client.agents.CreateVariant(brief)).variant.variant_id
    await commit("atlas/brief", "0")
    return World(ids)


@pytest.mark.spec("2.6")
async def test_references_mean_one_coherent_target(pair: Pair) -> None:
    ada = pair.client()
    world, session_id = await build(ada), await new_session(ada)
    cases = {
        "flow artifact atlas": "atlas/default/1",
        "app artifact 'atlas'": "atlas/default/1",
        "eval variant atlas/brief": "atlas/brief/0",
        "flow revision atlas/default/0": "atlas/default/0",
        "flow revision atlas/default 0": "atlas/default/0",
        "flow artifact atlas, flow variant 'brief'": "atlas/brief/0",
        "flow variant 'brief', flow artifact 'atlas'": "atlas/brief/0",
        "flow artifact atlas, flow revision 'brief' 0": "atlas/brief/0",
        "flow artifact atlas, flow variant atlas/default, flow revision atlas/default/0": "atlas/default/0",
        "app artifact atlas, flow artifact 'atlas'": "atlas/default/1",
        "app artifact atlas, flow revision atlas/default/0": "atlas/default/0",
        "app artifact atlas, eval variant 'brief'": "atlas/brief/0",
    }
    for references, target in cases.items():
        run = await start(ada, session_id, references=map(world.reference, references.split(", ")))
        assert run.target == world.target(target), references
        assert not run.is_draft


@pytest.mark.spec("2.5", "2.6")
async def test_references_that_mean_nothing_start_nothing(pair: Pair) -> None:
    ada, other = pair.client(), pair.client(tenant="globex")
    world, session_id = await build(ada), await new_session(ada)
    foreign = await build(other)
    world.ids["foreign"], world.ids["foreign/default"] = foreign.ids["atlas"], foreign.ids["atlas/default"]
    world.ids["foreign/default/0"] = foreign.ids["atlas/default/0"]
    world.ids["nobody"] = "0199e0d0-0000-7000-8000-0000000000aa"
    cases = {
        "flow artifact nobody": "RESOURCE_NOT_FOUND",
        "flow artifact foreign": "RESOURCE_NOT_FOUND",
        "flow variant foreign/default": "RESOURCE_NOT_FOUND",
        "flow revision foreign/default/0": "RESOURCE_NOT_FOUND",
        "flow revision foreign/default 0": "RESOURCE_NOT_FOUND",
        "flow artifact 'nobody'": "RESOURCE_NOT_FOUND",
        "flow artifact atlas, flow variant 'nobody'": "RESOURCE_NOT_FOUND",
        "flow revision atlas/default 2": "RESOURCE_NOT_FOUND",
        "flow artifact atlas/default": "RESOURCE_NOT_FOUND",
        "flow artifact boreas, flow variant atlas/brief": "REFERENCE_INCOHERENT",
        "flow artifact boreas, flow revision atlas/brief/0": "REFERENCE_INCOHERENT",
        "flow variant atlas/default, flow revision atlas/brief/0": "REFERENCE_INCOHERENT",
        "flow variant atlas/default, flow revision boreas/default/0": "REFERENCE_INCOHERENT",
        "app variant atlas/default, flow variant atlas/brief": "REFERENCE_INCOHERENT",
        "flow revision atlas/default/0, eval revision atlas/default/1": "REFERENCE_INCOHERENT",
        "app artifact atlas, flow artifact boreas": "AGENT_AMBIGUOUS",
        "app artifact atlas, flow revision boreas/default/0": "AGENT_AMBIGUOUS",
        "flow variant 'brief'": "INVALID_FIELD",
        "flow revision 'brief'": "INVALID_FIELD",
        "flow artifact atlas 0": "INVALID_FIELD",
        "flow variant atlas/brief 0": "INVALID_FIELD",
    }

    async def outcome(references: str) -> str:
        try:
            run = await start(ada, session_id, references=map(world.reference, references.split(", ")))
        except grpc.aio.AioRpcError as error:
            return errors.reason(error)
        return f"started {run.target}"

    assert {references: await outcome(references) for references in cases} == cases
    assert not (await ada.runs.ListRuns(ListRunsRequest(session_id=session_id))).runs
    assert not await messages(ada, session_id)


@pytest.mark.spec("2.5")
async def test_ambiguous_references_with_an_inline_config_run_without_an_agent(pair: Pair) -> None:
    ada = pair.client()
    world, session_id = await build(ada), await new_session(ada)
    references = [world.reference("app artifact atlas"), world.reference("flow artifact boreas")]
    run = await start(ada, session_id, references=references, config_json=scripted({"text": "x"}))
    assert run.target == Target()


@pytest.mark.spec("2.6", "2.5")
async def test_an_agent_without_any_commit_has_nothing_to_run_but_an_inline_config(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    agent_id, variant_id = await new_agent(ada)
    named = Reference(family=FAMILIES["flow"], level=LEVELS["artifact"], id=agent_id)
    with refused("RESOURCE_NOT_FOUND"):
        await start(ada, session_id, references=[named])
    run = await start(ada, session_id, references=[named], config_json=scripted({"text": "x"}))
    assert run.target == Target(agent_id=agent_id, variant_id=variant_id)
    assert run.is_draft
