"""A client of the session service, as an internal service would write one: stubs, a bearer token, a time limit."""

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Self

import grpc
from turnkeeper.v1 import agent_service_pb2, run_service_pb2, session_service_pb2
from turnkeeper.v1.agent_pb2 import Agent
from turnkeeper.v1.agent_service_pb2_grpc import AgentServiceStub
from turnkeeper.v1.reference_pb2 import REFERENCE_FAMILY_APPLICATION, REFERENCE_LEVEL_ARTIFACT, Reference
from turnkeeper.v1.run_event_pb2 import RunEvent
from turnkeeper.v1.run_pb2 import Run
from turnkeeper.v1.run_service_pb2_grpc import RunServiceStub
from turnkeeper.v1.session_pb2 import Message, Session
from turnkeeper.v1.session_service_pb2_grpc import SessionServiceStub

if TYPE_CHECKING:  # the stubs' types are in their .pyi files alone
    from turnkeeper.v1.agent_service_pb2_grpc import AgentServiceAsyncStub
    from turnkeeper.v1.run_service_pb2_grpc import RunServiceAsyncStub
    from turnkeeper.v1.session_service_pb2_grpc import SessionServiceAsyncStub

CALL_SECONDS = 10.0
WATCH_SECONDS = 60.0


class Caller:
    """One user of one tenant."""

    _sessions: "SessionServiceAsyncStub"
    _runs: "RunServiceAsyncStub"
    _agents: "AgentServiceAsyncStub"

    def __init__(self, address: str, token: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._sessions = SessionServiceStub(self._channel)
        self._runs = RunServiceStub(self._channel)
        self._agents = AgentServiceStub(self._channel)
        self._options: dict[str, Any] = {
            "metadata": (("authorization", f"Bearer {token}"),),
            "timeout": CALL_SECONDS,
            "wait_for_ready": True,
        }

    async def create_agent(self, name: str, config: dict[str, Any]) -> Agent:
        """Creates an agent whose first revision is this config."""
        created = await self._agents.CreateAgent(agent_service_pb2.CreateAgentRequest(name=name), **self._options)
        commit = agent_service_pb2.CommitRevisionRequest(
            variant_id=created.agent.default_variant_id, config_json=json.dumps(config), message="The first one"
        )
        await self._agents.CommitRevision(commit, **self._options)
        return await self.agent(created.agent.agent_id)

    async def agent(self, agent_id: str) -> Agent:
        """Reads an agent."""
        request = agent_service_pb2.GetAgentRequest(agent_id=agent_id)
        return (await self._agents.GetAgent(request, **self._options)).agent

    async def create_session(self, name: str) -> Session:
        """Creates a session."""
        request = session_service_pb2.CreateSessionRequest(name=name)
        return (await self._sessions.CreateSession(request, **self._options)).session

    async def session(self, session_id: str) -> Session:
        """Reads a session."""
        request = session_service_pb2.GetSessionRequest(session_id=session_id)
        return (await self._sessions.GetSession(request, **self._options)).session

    async def messages(self, session_id: str) -> list[Message]:
        """Reads a session's history, page by page."""
        messages: list[Message] = []
        request = session_service_pb2.ListMessagesRequest(session_id=session_id)
        while True:
            page = await self._sessions.ListMessages(request, **self._options)
            messages.extend(page.messages)
            if not page.next_page_token:
                return messages
            request.page_token = page.next_page_token

    async def start_run(self, session: Session, agent: Agent, key: str, text: str) -> run_service_pb2.StartRunResponse:
        """One click of send. The key is the click's: the same click again has the same key."""
        reference = Reference(family=REFERENCE_FAMILY_APPLICATION, level=REFERENCE_LEVEL_ARTIFACT, id=agent.agent_id)
        request = run_service_pb2.StartRunRequest(
            session_id=session.session_id, idempotency_key=key, input=text, references=[reference]
        )
        return await self._runs.StartRun(request, **self._options)

    async def run(self, run_id: str) -> Run:
        """Reads a run."""
        return (await self._runs.GetRun(run_service_pb2.GetRunRequest(run_id=run_id), **self._options)).run

    async def cancel(self, run_id: str, reason: str) -> run_service_pb2.CancelRunResponse:
        """Cancels a run."""
        request = run_service_pb2.CancelRunRequest(run_id=run_id, reason=reason)
        return await self._runs.CancelRun(request, **self._options)

    async def watch(self, run_id: str, after_sequence: int = 0) -> AsyncIterator[RunEvent]:
        """A run's events, from a cursor to the end of the run."""
        request = run_service_pb2.WatchRunRequest(run_id=run_id, after_sequence=after_sequence)
        async for response in self._runs.WatchRun(request, **{**self._options, "timeout": WATCH_SECONDS}):
            yield response.event

    async def events(self, run_id: str) -> list[RunEvent]:
        """All events of a run that has ended."""
        return [event async for event in self.watch(run_id)]

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
