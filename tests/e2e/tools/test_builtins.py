"""Built-in tools through the real pair: bound by the server, one transaction with their record, audited."""

import asyncio

import pytest
from sqlalchemy import update
from turnkeeper.v1 import run_pb2, session_pb2
from turnkeeper.v1.agent_service_pb2 import GetAgentRequest, UpdateAgentRequest
from turnkeeper.v1.session_service_pb2 import GetSessionRequest, UpdateSessionRequest, UpdateSessionResponse
from turnkeeper.v1.turn_service_pb2 import BeginToolCallRequest

from session_service.storage.schema import agents
from tests.e2e.tools.test_identity import direct
from tests.e2e.tools.turns import (
    RENAME_AGENT,
    RENAME_SESSION,
    as_runner,
    audited,
    calling,
    kinds,
    openai,
    played,
    results,
)
from tests.far import model
from tests.fixtures.client import Client
from tests.fixtures.journeys import ended, follow, get, new_agent, new_session, reference, refused, scripted, start
from tests.fixtures.pair import Pair

AUTOMATIC, USER = session_pb2.NAME_SOURCE_AUTOMATIC, session_pb2.NAME_SOURCE_USER
SCOPES = ("sessions:write", "agents:write")


async def named(client: Client, session_id: str) -> tuple[str, session_pb2.NameSource.ValueType]:
    """The session's name and who chose it."""
    session = (await client.sessions.GetSession(GetSessionRequest(session_id=session_id))).session
    return session.name, session.name_source


async def agent_named(client: Client, agent_id: str) -> tuple[str, session_pb2.NameSource.ValueType]:
    """The agent's name and who chose it."""
    agent = (await client.agents.GetAgent(GetAgentRequest(agent_id=agent_id))).agent
    return agent.name, agent.name_source


async def user_renames(client: Client, session_id: str, name: str) -> UpdateSessionResponse:
    """As a user does by hand."""
    request = UpdateSessionRequest(session_id=session_id, name=name)
    request.update_mask.paths.append("name")
    return await client.sessions.UpdateSession(request)


@pytest.mark.spec("8.6", "8.7", "5.2", "1.5", "7.6")
async def test_the_model_only_gives_the_names(pair: Pair) -> None:
    ada = pair.client()
    agent_id, _ = await new_agent(ada, openai(RENAME_SESSION, RENAME_AGENT))
    session_id, other_id = await new_session(ada), await new_session(ada, name="Other")
    pair.model.queue(model.tool_calls(model.Call("rename_session", {"name": " Blue ", "session_id": other_id})))
    pair.model.queue(model.tool_calls(model.Call("rename_agent", {"name": "Atlas", "agent_id": other_id})))
    pair.model.queue(model.text("done"))

    run, events = await played(ada, session_id, references=[reference(agent_id)])

    assert await named(ada, session_id) == ("Blue", AUTOMATIC)
    assert await agent_named(ada, agent_id) == ("Atlas", AUTOMATIC)
    assert await named(ada, other_id) == ("Other", USER)
    first, second, last = pair.model.prompts
    assert {name: list(tool["parameters"]["properties"]) for tool in first.tools for name in [tool["name"]]} == {
        "rename_session": ["name"],
        "rename_agent": ["name"],
    }
    assert second.texts("tool") == ['The name is now "Blue".']
    assert last.texts("tool")[-1] == 'The name is now "Atlas".'
    assert kinds(events)[:6] == [
        "tool_call_started",
        "session_renamed",
        "tool_call_finished",
        "tool_call_started",
        "tool_call_finished",
        "text_delta",
    ]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [event.session_renamed.name for event in events if event.HasField("session_renamed")] == ["Blue"]
    assert [state for state, _ in results(events)] == ["SUCCEEDED", "SUCCEEDED"]
    entries = [
        (each["operator_user_id"], each["method"], each["target"], each["result"]) for each in await audited(pair)
    ]
    assert entries == [
        ("ada", "rename_session", f"session {session_id}", "OK"),
        ("ada", "rename_agent", f"agent {agent_id}", "OK"),
    ]
    assert all(run.run_id in each["reason"] for each in await audited(pair))


@pytest.mark.spec("8.7", "8.6", "1.5")
async def test_a_name_that_the_user_chose_meanwhile_stays(pair: Pair) -> None:
    # CASES 25: the automatic title is held, the user renames, the title comes.
    ada = pair.client()
    session_id = await new_session(ada)
    title = calling("rename_session", name="Automatic title")
    config = scripted({"wait_gate": "title"}, title, {"text": "on it goes"}, tools=[RENAME_SESSION])
    run = await start(ada, session_id, config_json=config)
    await pair.gates.reached("title")
    await user_renames(ada, session_id, "Mine")
    pair.gates.open("title")

    events = await follow(ada, run.run_id)
    assert (await get(ada, run.run_id)).state == run_pb2.RUN_STATE_COMPLETED
    assert await named(ada, session_id) == ("Mine", USER)
    assert results(events) == [("FAILED", "NAME_SET_BY_USER: A user chose the name.")]
    assert "session_renamed" not in kinds(events)
    [entry] = await audited(pair)
    assert (entry["method"], entry["result"]) == ("rename_session", "NAME_SET_BY_USER")


@pytest.mark.spec("8.7")
async def test_an_agents_name_that_a_user_chose_stays(pair: Pair) -> None:
    ada = pair.client()
    config = scripted(calling("rename_agent", name="Hermes"), tools=[RENAME_AGENT])
    agent_id, _ = await new_agent(ada, config, name="Atlas")
    _, events = await played(ada, await new_session(ada), references=[reference(agent_id)])
    assert await agent_named(ada, agent_id) == ("Atlas", USER)
    assert results(events) == [("FAILED", "NAME_SET_BY_USER: A user chose the name.")]


async def begun(pair: Pair, tool_name: str = "rename_session") -> tuple[Client, Client, run_pb2.Run]:
    """A run that waits, and its runner, which has begun the call 1.1.0 of this tool."""
    ada = pair.client()
    run = await start(ada, await new_session(ada), config_json=scripted({"wait_gate": "hold"}, tools=[RENAME_SESSION]))
    await pair.gates.reached("hold")
    runner = await as_runner(pair, run, SCOPES)
    begin = BeginToolCallRequest(call_id="1.1.0", tool_name=tool_name, arguments_json="{}", side_effect=True)
    await runner.turns.BeginToolCall(begin)
    return ada, runner, run


def rename(run: run_pb2.Run, name: str = "Blue", call_id: str = "1.1.0") -> UpdateSessionRequest:
    """As a runner does it for a tool call."""
    request = UpdateSessionRequest(session_id=run.session_id, name=name, tool_call_id=call_id)
    request.update_mask.paths.append("name")
    return request


@pytest.mark.spec("8.6", "5.2", "3.6")
async def test_the_write_and_the_end_of_its_call_are_one_and_a_repetition_writes_nothing(pair: Pair) -> None:
    ada, runner, run = await begun(pair)

    first = await runner.sessions.UpdateSession(rename(run))
    call = (await get(ada, run.run_id)).tool_calls[0]
    await user_renames(ada, run.session_id, "Mine")
    again = await runner.sessions.UpdateSession(rename(run))
    recorded = await runner.turns.BeginToolCall(
        BeginToolCallRequest(call_id="1.1.0", tool_name="rename_session", arguments_json="{}", side_effect=True)
    )

    assert (call.state, first.tool_result) == (run_pb2.TOOL_CALL_STATE_SUCCEEDED, 'The name is now "Blue".')
    assert again.tool_result == recorded.recorded_result.result == first.tool_result
    assert await named(ada, run.session_id) == ("Mine", USER)
    assert len(await audited(pair)) == 1
    pair.gates.open("hold")
    assert kinds(await follow(ada, run.run_id))[:3] == ["tool_call_started", "session_renamed", "tool_call_finished"]


@pytest.mark.spec("8.6")
async def test_one_call_writes_once_whoever_comes_at_the_same_time(pair: Pair) -> None:
    _, runner, run = await begun(pair)
    answers = await asyncio.gather(*(runner.sessions.UpdateSession(rename(run, f"Blue {n}")) for n in range(4)))
    assert len({answer.tool_result for answer in answers}) == 1
    assert len({answer.session.name for answer in answers}) == 1
    assert len(await audited(pair)) == 1


@pytest.mark.spec("8.6", "1.5")
async def test_a_write_in_no_open_call_of_its_tool_leaves_nothing(pair: Pair) -> None:
    ada, runner, run = await begun(pair, tool_name="another")
    before = await get(ada, run.run_id)

    with refused("TOOL_CALL_CONFLICT"):
        await runner.sessions.UpdateSession(rename(run))
    with refused("RESOURCE_NOT_FOUND"):
        await runner.sessions.UpdateSession(rename(run, call_id="1.1.7"))
    with refused("INVALID_FIELD"):
        await runner.sessions.UpdateSession(rename(run, name="  "))
    with refused("INVALID_FIELD"):  # a user's rename belongs to no call
        await ada.sessions.UpdateSession(rename(run))
    with refused("SCOPE_MISSING"):
        await (await as_runner(pair, run, ["agents:write"])).sessions.UpdateSession(rename(run))
    with refused("ATTEMPT_FENCED"):
        await (await as_runner(pair, run, SCOPES, attempt=2)).sessions.UpdateSession(rename(run))

    assert await named(ada, run.session_id) == ("", session_pb2.NAME_SOURCE_UNSPECIFIED)
    assert await get(ada, run.run_id) == before
    assert await audited(pair) == []


@pytest.mark.spec("1.5", "1.7")
async def test_a_run_renames_neither_another_session_nor_another_agent(pair: Pair) -> None:
    ada, runner, run = await begun(pair)
    other = await new_session(ada, name="Other")
    agent_id, _ = await new_agent(ada, name="Atlas")
    foreign = rename(run)
    foreign.session_id = other
    agent = UpdateAgentRequest(agent_id=agent_id, name="Evil")
    agent.update_mask.paths.append("name")
    with refused("RESOURCE_NOT_FOUND"):
        await runner.sessions.UpdateSession(foreign)
    with refused("RESOURCE_NOT_FOUND"):
        await runner.agents.UpdateAgent(agent)
    assert (await named(ada, other))[0] == "Other"
    assert (await agent_named(ada, agent_id))[0] == "Atlas"


@pytest.mark.spec("8.6", "7.5")
async def test_what_cannot_be_renamed_is_told_and_the_turn_goes_on(pair: Pair) -> None:
    ada = pair.client()
    tools = [RENAME_SESSION, RENAME_AGENT]
    steps = [
        calling("rename_agent", name="No agent here"),
        calling("rename_session", name=7),
        calling("rename_session", name=""),
        calling("rename_session", name="x" * 201),
        {"text": "done"},
    ]
    run, events = await played(ada, await new_session(ada), config_json=scripted(*steps, tools=tools))
    told = results(events)
    assert [state for state, _ in told] == ["FAILED"] * 4
    assert told[0][1].startswith("TOOL_BINDING_UNRESOLVED: agent_id")
    assert "must be a text" in told[1][1]
    assert told[2][1].startswith("INVALID_FIELD")
    assert "1-200 code points" in told[3][1]
    assert (await get(ada, run.run_id)).state == run_pb2.RUN_STATE_COMPLETED


@pytest.mark.spec("8.6")
async def test_an_agent_that_is_gone_is_told_and_the_turn_goes_on(pair: Pair) -> None:
    ada = pair.client()
    config = scripted({"wait_gate": "hold"}, calling("rename_agent", name="Atlas"), tools=[RENAME_AGENT])
    agent_id, _ = await new_agent(ada, config)
    run = await start(ada, await new_session(ada), references=[reference(agent_id)])
    await pair.gates.reached("hold")
    gone = update(agents).where(agents.c.agent_id == agent_id).values(delete_time=1)
    await pair.session.storage.write("acme", lambda connection: connection.execute(gone).rowcount)
    pair.gates.open("hold")
    events = await follow(ada, run.run_id)
    assert results(events) == [("FAILED", "RESOURCE_NOT_FOUND: There is no such resource.")]
    assert (await ended(ada, run.run_id)).state == run_pb2.RUN_STATE_COMPLETED


@pytest.mark.spec("8.7", "9.7")
async def test_a_direct_turn_renames_as_a_program_of_its_user(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    config = scripted(calling("rename_session", name="Blue"), tools=[RENAME_SESSION])
    await direct(ada, config, session_id=session_id)
    assert await named(ada, session_id) == ("Blue", AUTOMATIC)
    await user_renames(ada, session_id, "Mine")
    await direct(ada, config, session_id=session_id)
    assert await named(ada, session_id) == ("Mine", USER)
