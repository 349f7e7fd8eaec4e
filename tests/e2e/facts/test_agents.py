"""Which agent a turn is told that it is: one, or none (SPEC 6.4, 6.9, 7.2)."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import pytest
from turnkeeper.v1 import reference_pb2 as ref
from turnkeeper.v1.reference_pb2 import Reference

from tests.e2e.facts import talk
from tests.e2e.facts.talk import FIRST, LATER, NO_NAME, direct_turn, turn
from tests.far import model
from tests.fixtures.client import Client
from tests.fixtures.journeys import new_agent, new_session, reference, refused, start
from tests.fixtures.pair import Pair

APPLICATION, WORKFLOW = ref.REFERENCE_FAMILY_APPLICATION, ref.REFERENCE_FAMILY_WORKFLOW
EVALUATOR = ref.REFERENCE_FAMILY_EVALUATOR
ARTIFACT, VARIANT = ref.REFERENCE_LEVEL_ARTIFACT, ref.REFERENCE_LEVEL_VARIANT
Family: TypeAlias = ref.ReferenceFamily.ValueType


@dataclass(frozen=True)
class Named:
    """An agent as references may spell it."""

    agent_id: str
    variant_id: str
    slug: str

    def by_id(self, family: Family) -> Reference:
        return reference(self.agent_id, family=family)

    def by_slug(self, family: Family) -> Reference:
        return Reference(family=family, level=ARTIFACT, slug=self.slug)

    def by_variant(self, family: Family) -> Reference:
        return reference(self.variant_id, VARIANT, family)

    def oddly(self, family: Family) -> Reference:
        return Reference(family=family, level=ARTIFACT, id="{" + self.agent_id.upper() + "}")


Spell = Callable[[Named, Family], Reference]


async def make(client: Client, name: str, config: str | None = None) -> Named:
    slug = name.lower()
    agent_id, variant_id = await new_agent(client, config or talk.config(), slug=slug, name=name)
    return Named(agent_id, variant_id, slug)


COMPETING = pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(Named.by_id, Named.by_id, id="ids"),
        pytest.param(Named.by_slug, Named.by_slug, id="slugs"),
        pytest.param(Named.by_id, Named.by_slug, id="mixed"),
        pytest.param(Named.by_slug, Named.by_variant, id="levels"),
    ],
)


@pytest.mark.spec("6.4", "6.9", "2.5")
@COMPETING
async def test_two_agents_in_competing_families_are_none(pair: Pair, one: Spell, other: Spell) -> None:
    ada = pair.client()
    atlas, vega = await make(ada, "Atlas"), await make(ada, "Vega")
    session_id = await new_session(ada, "Blue")
    references = [one(atlas, APPLICATION), other(vega, WORKFLOW)]

    with refused("AGENT_AMBIGUOUS"):
        await start(ada, session_id, references=references)
    inline = talk.config()
    assert await turn(pair, ada, session_id, references=references, config_json=inline) == [talk.session("Blue"), FIRST]
    told = await direct_turn(pair, ada, session_id=session_id, references=references)
    assert told == [talk.session("Blue"), LATER]
    told = await direct_turn(pair, ada, references=[one(atlas, EVALUATOR), other(vega, APPLICATION)])
    assert told == [NO_NAME, FIRST]


@pytest.mark.spec("6.4", "6.9")
@pytest.mark.parametrize("inline", [False, True], ids=["stored", "inline"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(Named.by_id, Named.by_id, id="ids"),
        pytest.param(Named.oddly, Named.by_id, id="spellings"),
        pytest.param(Named.by_slug, Named.oddly, id="mixed"),
        pytest.param(Named.by_slug, Named.by_variant, id="levels"),
    ],
)
async def test_one_agent_under_two_names_is_one(pair: Pair, one: Spell, other: Spell, inline: bool) -> None:
    ada = pair.client()
    atlas = await make(ada, "Atlas")
    session_id = await new_session(ada)
    references = [one(atlas, APPLICATION), other(atlas, WORKFLOW)]
    draft = {"config_json": talk.config(extensions={"draft": True})} if inline else {}

    told = await turn(pair, ada, session_id, references=references, **draft)
    assert told == [talk.agent("Atlas"), NO_NAME, FIRST]
    told = await direct_turn(pair, ada, session_id=session_id, references=references, **draft)
    assert told == [talk.agent("Atlas"), NO_NAME, LATER]


@pytest.mark.spec("6.4", "7.2", "7.5")
async def test_an_ambiguous_turn_has_no_workflow_to_bind_and_an_identified_one_has(pair: Pair) -> None:
    ada = pair.client()
    tool = {
        "name": "note",
        "http": {"method": "POST", "url": pair.tools.url("/note")},
        "bindings": {"agent": "$ctx.workflow.artifact.id", "kind": "$ctx.run.kind", "draft": "$ctx.workflow.is_draft"},
    }
    config = talk.config(tool)
    atlas, vega = await make(ada, "Atlas", config), await make(ada, "Vega", config)
    session_id = await new_session(ada)

    wanted = model.tool_calls(model.Call("note", {"agent": "forged", "kind": "forged", "draft": "forged"}))

    pair.model.queue(wanted)
    await turn(pair, ada, session_id, config_json=config, references=[atlas.by_id(APPLICATION), vega.by_id(WORKFLOW)])
    assert pair.model.prompts[-1].texts("tool")[0].startswith("TOOL_BINDING_UNRESOLVED: agent")
    assert len(pair.tools.requests) == 0
    pair.model.queue(wanted)
    await turn(pair, ada, session_id, config_json=config, references=[atlas.by_id(APPLICATION)])
    assert pair.tools.requests[0].json() == {"agent": atlas.agent_id, "kind": "run", "draft": False}
    for draft, sent in ((False, config), (True, talk.config(tool, extensions={"new": 1}))):
        pair.model.queue(wanted)
        references = [atlas.by_slug(EVALUATOR)]
        await direct_turn(pair, ada, session_id=session_id, config_json=sent, references=references)
        assert pair.tools.requests[-1].json() == {"agent": atlas.agent_id, "kind": "direct", "draft": draft}


@pytest.mark.spec("6.2", "6.4", "6.9", "1.7")
@pytest.mark.parametrize(
    ("scopes", "told"),
    [
        (["agents:read"], [talk.agent("Atlas")]),
        (["sessions:read"], [talk.session("Blue"), FIRST]),
        (["sessions:read", "agents:read"], [talk.agent("Atlas"), talk.session("Blue"), FIRST]),
        ([], []),
    ],
    ids=["session denied", "agent denied", "both", "neither"],
)
async def test_a_half_that_the_caller_may_not_read_costs_only_itself(
    pair: Pair, scopes: list[str], told: list[str]
) -> None:
    ada, narrow = pair.client(), pair.client(scopes=["runner:invoke", *scopes])
    atlas = await make(ada, "Atlas")
    session_id = await new_session(ada, "Blue")
    given = await direct_turn(pair, narrow, session_id=session_id, references=[atlas.by_slug(WORKFLOW)])
    assert given == told


@pytest.mark.spec("6.2", "6.4", "6.6")
async def test_references_that_lead_nowhere_cost_a_direct_turn_its_agent_line_alone(pair: Pair) -> None:
    ada = pair.client()
    atlas, vega = await make(ada, "Atlas"), await make(ada, "Vega")
    session_id = await new_session(ada, "Blue")
    nowhere = reference("0199e0d0-0000-7000-8000-0000000000aa")
    incoherent = [atlas.by_id(WORKFLOW), vega.by_variant(WORKFLOW)]
    for number, references in enumerate(([nowhere], incoherent)):
        told = await direct_turn(pair, ada, session_id=session_id, references=references)
        assert told == [talk.session("Blue"), LATER if number else FIRST]
    assert json.dumps([prompt.body for prompt in pair.model.prompts]).count("Vega") == 0
