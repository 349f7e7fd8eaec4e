"""A runner against a session service that does what the test says."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from turnkeeper.v1 import turn_event_pb2
from turnkeeper.v1.runner_service_pb2 import ExecuteTurnRequest, TurnStart

from runner_service.app import RunnerApp, runner_app
from runner_service.harnesses.registry import discover
from runner_service.settings import Settings
from tests.far.gates import GateServer
from tests.far.model import ModelServer
from tests.far.tools import ToolServer
from tests.fixtures.client import Client
from tests.fixtures.issuer import Issuer
from tests.runner.far_session import FarSession

MODEL_KEY = "a-key-of-the-model"

StartRunner = Callable[..., AbstractAsyncContextManager[RunnerApp]]
Direct = Callable[..., Coroutine[Any, Any, list[turn_event_pb2.TurnEvent]]]


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    """A model."""
    async with ModelServer() as far:
        yield far


@pytest.fixture
async def tools() -> AsyncIterator[ToolServer]:
    """A tool server."""
    async with ToolServer() as far:
        yield far


@pytest.fixture
async def gates() -> AsyncIterator[GateServer]:
    """Gates for scripts."""
    async with GateServer() as far:
        yield far


@pytest.fixture
async def sessions() -> AsyncIterator[FarSession]:
    """A session service that does what the test says."""
    async with FarSession() as far:
        yield far


@pytest.fixture
def start_runner(
    issuer: Issuer, model: ModelServer, tools: ToolServer, gates: GateServer, sessions: FarSession
) -> StartRunner:
    """Starts runners; settings of the test's choice win."""

    @asynccontextmanager
    async def start(*, harnesses: dict[str, Any] | None = None, **given: Any) -> AsyncIterator[RunnerApp]:
        settings: dict[str, Any] = {
            "listen": "127.0.0.1:0",
            "session_target": sessions.address,
            "user_jwks": str(issuer.jwks_path),
            "user_issuer": issuer.name,
            "user_audience": issuer.audience,
            "openai_base_url": model.base_url,
            "openai_api_key": MODEL_KEY,
            "tool_origins": (tools.origin,),
            "gate_address": gates.address,
            "store_id": "store-1",
            "stop_grace_seconds": 1.0,
            "shutdown_grace_seconds": 4.0,
        }
        factories = None if harnesses is None else {**discover(), **harnesses}
        async with runner_app(Settings(**{**settings, **given}), harnesses=factories) as app:
            yield app

    return start


@pytest.fixture
async def runner(start_runner: StartRunner) -> AsyncIterator[RunnerApp]:
    """A running runner service."""
    async with start_runner() as app:
        yield app


@pytest.fixture
async def ada(runner: RunnerApp, issuer: Issuer, sessions: FarSession) -> AsyncIterator[Client]:
    """A user who may do everything."""
    async with Client(sessions.address, runner.address, issuer.token()) as client:
        yield client


@pytest.fixture
def direct(ada: Client) -> Direct:
    """Executes a direct turn to its end and gives its events."""

    async def execute(config: str, text: str = "Hello", **call: Any) -> list[turn_event_pb2.TurnEvent]:
        stream = ada.runner.ExecuteTurn(**call)
        await stream.write(ExecuteTurnRequest(start=TurnStart(input=text, config_json=config)))
        return [response.event async for response in stream]

    return execute
