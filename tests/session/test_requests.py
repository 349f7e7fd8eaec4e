"""Request ids: a retry is answered with the stored response."""

import asyncio
from typing import Any

import grpc
import pytest
from turnkeeper.v1.agent_service_pb2 import (
    CommitRevisionRequest,
    CreateAgentRequest,
    CreateVariantRequest,
    ListAgentsRequest,
    ListVariantsRequest,
)
from turnkeeper.v1.session_pb2 import MESSAGE_ROLE_USER
from turnkeeper.v1.session_service_pb2 import (
    AppendMessageRequest,
    CreateSessionRequest,
    DeleteSessionRequest,
    ListSessionsRequest,
)

from tests.fixtures.client import Client
from tests.fixtures.journeys import messages, new_agent, new_session, refused, scripted
from tests.fixtures.pair import Pair


async def sessions_of(client: Client) -> int:
    return len((await client.sessions.ListSessions(ListSessionsRequest())).sessions)


@pytest.mark.spec("2.3")
async def test_a_retry_makes_nothing_new(pair: Pair) -> None:
    ada = pair.client()
    request = CreateSessionRequest(name="Blue", request_id="r-1")
    first, *others = await asyncio.gather(*(ada.sessions.CreateSession(request) for _ in range(20)))
    assert all(other == first for other in others)
    assert await ada.sessions.CreateSession(request) == first
    assert await sessions_of(ada) == 1


@pytest.mark.spec("2.3")
async def test_an_id_is_of_one_user_and_one_request(pair: Pair) -> None:
    ada, bob = pair.client(), pair.client(user="bob")
    await ada.sessions.CreateSession(CreateSessionRequest(name="Blue", request_id="r-1"))
    for client, request in (
        (ada, CreateSessionRequest(name="Red", request_id="r-1")),
        (ada, CreateSessionRequest(name="Blue", automatic_name=True, request_id="r-1")),
        (bob, CreateSessionRequest(name="Blue", request_id="r-1")),
    ):
        with refused("REQUEST_ID_REUSED") as refusal:
            await client.sessions.CreateSession(request)
        assert refusal.code is grpc.StatusCode.ALREADY_EXISTS
        assert refusal.detail.metadata == {}
    assert (await sessions_of(ada), await sessions_of(bob)) == (1, 0)


@pytest.mark.spec("2.3")
async def test_the_same_id_in_another_tenant_or_method_is_independent(pair: Pair) -> None:
    ada, other = pair.client(), pair.client(tenant="globex")
    request = CreateSessionRequest(name="Blue", request_id="r-1")
    first, second = await ada.sessions.CreateSession(request), await other.sessions.CreateSession(request)
    assert first.session.session_id != second.session.session_id
    agent = (await ada.agents.CreateAgent(CreateAgentRequest(name="Blue", request_id="r-1"))).agent
    assert agent.name == "Blue"


@pytest.mark.spec("2.3")
async def test_a_refused_request_does_not_burn_its_id(pair: Pair) -> None:
    ada = pair.client()
    await new_agent(ada, slug="taken")
    with refused("SLUG_TAKEN"):
        await ada.agents.CreateAgent(CreateAgentRequest(slug="taken", request_id="r-1"))
    made = await ada.agents.CreateAgent(CreateAgentRequest(slug="free", request_id="r-1"))
    assert made.agent.slug == "free"


@pytest.mark.spec("2.3")
async def test_every_creation_takes_a_request_id(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    agent_id, variant_id = await new_agent(ada)
    appended = AppendMessageRequest(session_id=session_id, role=MESSAGE_ROLE_USER, text="once", request_id="r")
    committed = CommitRevisionRequest(variant_id=variant_id, config_json=scripted({"text": "x"}), request_id="r")
    calls: list[tuple[Any, Any]] = [
        (ada.sessions.AppendMessage, appended),
        (ada.agents.CreateAgent, CreateAgentRequest(slug="once", request_id="r")),
        (ada.agents.CreateVariant, CreateVariantRequest(agent_id=agent_id, slug="once", request_id="r")),
        (ada.agents.CommitRevision, committed),  # again on the same base it would be a conflict
    ]
    for method, request in calls:
        assert await method(request) == await method(request)

    assert len(await messages(ada, session_id)) == 1
    assert len((await ada.agents.ListAgents(ListAgentsRequest())).agents) == 2
    assert len((await ada.agents.ListVariants(ListVariantsRequest(agent_id=agent_id))).variants) == 2
    appended.text = "twice"
    with refused("REQUEST_ID_REUSED"):
        await ada.sessions.AppendMessage(appended)


@pytest.mark.spec("2.3", "9.5")
async def test_a_retried_message_to_a_deleted_session_is_not_answered(pair: Pair) -> None:
    ada = pair.client()
    session_id = await new_session(ada)
    request = AppendMessageRequest(session_id=session_id, role=MESSAGE_ROLE_USER, text="once", request_id="r")
    await ada.sessions.AppendMessage(request)
    await ada.sessions.DeleteSession(DeleteSessionRequest(session_id=session_id))
    with refused("RESOURCE_NOT_FOUND"):
        await ada.sessions.AppendMessage(request)


@pytest.mark.spec("11.1")
@pytest.mark.parametrize("request_id", ["x" * 256, "a\nb", "é", "k" * 9000])
async def test_an_id_that_is_none(pair: Pair, request_id: str) -> None:
    """CASES 15."""
    with refused("INVALID_FIELD") as refusal:
        await pair.client().sessions.CreateSession(CreateSessionRequest(request_id=request_id))
    assert [each.field for each in refusal.detail.fields] == ["request_id"]
