"""Bound tools through the pair: what the model sees, what it tries, and what reaches the tool (SPEC 7; CASES 28)."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from turnkeeper.v1 import run_pb2
from turnkeeper.v1.agent_service_pb2 import CommitRevisionRequest, GetAgentRequest
from turnkeeper.v1.run_service_pb2 import ListRunsRequest
from turnkeeper.v1.runner_service_pb2 import ExecuteTurnRequest, TurnStart

from tests.far import model as m
from tests.fixtures import journeys as j
from tests.fixtures.pair import Pair, StartPair

SCHEMA = {
    "type": "object",
    "properties": {
        "note": {"type": "string"},
        "target": {
            "type": "object",
            "properties": {"variant": {"type": "string"}, "label": {"type": "string"}},
            "required": ["variant", "label"],
        },
        "draft": {"type": "boolean"},
    },
    "required": ["note", "draft"],
}
BINDINGS = {"target.variant": "$ctx.workflow.variant.id", "draft": "$ctx.workflow.is_draft"}


@pytest.fixture
async def pair(start_pair: StartPair) -> AsyncIterator[Pair]:
    """A pair in no hurry: on a busy machine no turn loses its lease or does without its run context."""
    async with start_pair(
        session={"lease_seconds": 30, "confirm_seconds": 40}, runner={"facts_budget": "30"}
    ) as running:
        yield running


def config(pair: Pair, **tool: Any) -> str:
    """A config of one tool, `put`, which calls the tool server."""
    put = {"name": "put", "http": {"method": "POST", "url": pair.tools.url("/put")}, **tool}
    return json.dumps({"schema_version": 1, "harness": "openai", "model": {"name": "m-1"}, "tools": [put]})


@pytest.mark.spec("7.1", "7.2", "7.4", "7.6", "7.9")
async def test_whatever_a_model_tries_the_wire_has_the_servers_value(pair: Pair) -> None:
    ada = pair.client()
    agent, variant = await j.new_agent(ada, config(pair, input_schema=SCHEMA, bindings=BINDINGS))
    tries: list[dict[str, Any]] = [
        {"target": {"variant": "evil", "label": "x"}},
        {"target.variant": "evil", "target": {"label": "x"}},
        {"target.variant.id": "evil"},
        {"target": "evil"},
        {"target": [{"variant": "evil"}]},
        {"target": {"variant": {"id": "evil"}}, "draft": {"evil": True}},
        {"target": None, "draft": "evil"},
        {
            "$ctx": {"workflow": {"variant": {"id": "evil"}}},
            "bindings": {"target.variant": "evil"},
            "target": "$ctx.user.id",
        },
    ]
    pair.model.queue(m.tool_calls(*(m.Call("put", {"note": str(n), **each}) for n, each in enumerate(tries))))
    pair.model.queue(m.text("Done."))
    run = await j.start(ada, await j.new_session(ada), references=[j.reference(agent)])
    assert (await j.ended(ada, run.run_id)).state == run_pb2.RUN_STATE_COMPLETED

    parameters = (await pair.model.prompt(1)).tools[0]["parameters"]
    assert sorted(parameters["properties"]) == ["note", "target"]
    assert parameters["required"] == ["note"]
    assert parameters["properties"]["target"] == {
        "type": "object",
        "properties": {"label": {"type": "string"}},
        "required": ["label"],
    }
    bodies = {int(body["note"]): body for body in (request.json() for request in pair.tools.requests)}
    assert sorted(bodies) == list(range(len(tries)))
    for body in bodies.values():
        assert (body["target"]["variant"], body["draft"]) == (variant, False)
        assert not [key for key in body if key.startswith("target.")]
    assert [n for n, body in bodies.items() if "evil" in json.dumps(body)] == [7]  # as data, beside what is bound
    assert bodies[0]["target"] == {"label": "x", "variant": variant}
    assert bodies[1]["target"] == {"label": "x", "variant": variant}


@pytest.mark.spec("7.1", "7.2")
async def test_every_key_of_a_run(pair: Pair) -> None:
    ada = pair.client()
    keys = {
        *("workflow.artifact.id", "workflow.artifact.slug", "workflow.variant.id", "workflow.variant.slug"),
        *("workflow.revision.id", "workflow.revision.slug", "workflow.revision.version", "workflow.is_draft"),
        *("run.id", "run.kind", "session.id", "tenant.id", "user.id"),
    }
    bound = config(pair, bindings={key: f"$ctx.{key}" for key in keys}, args_into="model")
    agent_id, variant_id = await j.new_agent(ada, bound, slug="atlas")
    agent = (await ada.agents.GetAgent(GetAgentRequest(agent_id=agent_id))).agent
    session = await j.new_session(ada)
    pair.model.queue(m.tool_calls(m.Call("put", '{"n": 9007199254740993, "ten": 10}')))
    pair.model.queue(m.text("Done."))
    run = await j.start(ada, session, references=[j.reference(agent_id)])
    ended = await j.ended(ada, run.run_id)
    body = (await pair.tools.request()).json()
    variant, revision = body["workflow"]["variant"], body["workflow"].pop("revision")
    assert body == {
        "model": {"n": 9007199254740993, "ten": 10},
        "workflow": {
            "artifact": {"id": agent_id, "slug": agent.slug},
            "variant": {"id": variant_id, "slug": variant["slug"]},
            "is_draft": False,
        },
        "run": {"id": run.run_id, "kind": "run"},
        "session": {"id": session},
        "tenant": {"id": "acme"},
        "user": {"id": "ada"},
    }
    assert revision == {"id": ended.target.revision_id, "slug": f"{variant['slug']}@0", "version": "0"}


@pytest.mark.spec("7.5", "7.9")
async def test_a_binding_without_a_value_sends_nothing(pair: Pair) -> None:
    ada = pair.client()
    pair.model.queue(m.tool_calls(m.Call("put", {"target": {"variant": "evil"}})))
    pair.model.queue(m.text("Done."))
    given = config(pair, bindings={"target.variant": "$ctx.workflow.variant.id", "s": "$ctx.session.id"})
    run = await j.start(ada, await j.new_session(ada), config_json=given)
    finished = [e.tool_call_finished for e in await j.follow(ada, run.run_id) if e.HasField("tool_call_finished")]
    assert [each.state for each in finished] == [run_pb2.TOOL_CALL_STATE_FAILED]
    [told] = (await pair.model.prompt(2)).texts("tool")
    assert told.startswith("TOOL_BINDING_UNRESOLVED: target.variant ")
    assert len(pair.tools.requests) == 0


@pytest.mark.spec("7.1", "7.5")
async def test_a_direct_turn_is_direct_and_has_no_run(pair: Pair) -> None:
    ada = pair.client()
    first = {"name": "kind", "http": {"method": "POST", "url": pair.tools.url("/kind")}}
    second = {"name": "run", "http": {"method": "POST", "url": pair.tools.url("/run")}}
    calls = {"tool_calls": [{"name": "kind", "arguments": {}}, {"name": "run", "arguments": {"id": "evil"}}]}
    script = j.scripted(
        calls,
        tools=[{**first, "bindings": {"kind": "$ctx.run.kind"}}, {**second, "bindings": {"id": "$ctx.run.id"}}],
    )
    turn = ada.runner.ExecuteTurn()
    await turn.write(ExecuteTurnRequest(start=TurnStart(input="Hello", config_json=script)))
    assert [response.event async for response in turn][-1].turn_ended.HasField("completed")
    assert [(request.path, request.json()) for request in pair.tools.requests] == [("/kind", {"kind": "direct"})]


@pytest.mark.spec("7.7")
@pytest.mark.parametrize(
    ("bindings", "path"),
    [
        ({"a..b": "$ctx.user.id"}, "a..b"),
        ({"a.__proto__": "$ctx.user.id"}, "a.__proto__"),
        ({"a": "$ctx.user.id", "a.b": "$ctx.run.id"}, "a.b"),
        ({"a": "$ctx.user.name"}, "a"),
        ({"a": "$ctx.workflow"}, "a"),
    ],
)
async def test_a_revision_or_a_start_with_such_a_binding_is_refused(
    pair: Pair, bindings: dict[str, str], path: str
) -> None:
    ada = pair.client()
    _, variant = await j.new_agent(ada)
    session = await j.new_session(ada)
    wrong = config(pair, bindings=bindings)
    with j.refused("CONFIG_INVALID") as commit:
        await ada.agents.CommitRevision(CommitRevisionRequest(variant_id=variant, config_json=wrong))
    with j.refused("CONFIG_INVALID") as start:
        await j.start(ada, session, config_json=wrong)
    for refusal in (commit, start):
        assert refusal.code.name == "INVALID_ARGUMENT"
        assert [each.field for each in refusal.detail.fields] == [f'config_json.tools[0].bindings["{path}"]']
    assert not (await ada.runs.ListRuns(ListRunsRequest(session_id=session))).runs
